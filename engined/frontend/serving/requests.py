"""From prepared prompts to engine requests: every choice of every prompt is one sequence. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engined.frontend.access.caller import Caller
from engined.frontend.rendering.renderer import EngineInput
from engined.frontend.serving.sampling import choice_seed
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.grammar import GrammarSpec
from engined.protocol.reasoning import ReasoningSpec
from engined.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRules:
    """What the engine makes sure of in the output of each sequence."""

    grammar: GrammarSpec | None = None
    reasoning: ReasoningSpec | None = None


def build_requests(
    response_id: str,
    inputs: Sequence[EngineInput],
    samplings: Sequence[SamplingParams],
    num_choices: int,
    priority: int,
    arrival_time: float,
    rules: OutputRules,
) -> list[EngineCoreRequest]:
    """`num_choices` sequences for each prompt; choice k of prompt p is number p * num_choices + k.

    `samplings[p]` are the settings of prompt p; `rules` hold for all.
    """
    return [
        EngineCoreRequest(
            request_id=f"{response_id}-{prompt_index * num_choices + choice}",
            prompt_token_ids=engine_input.prompt_token_ids,
            sampling=choice_seed(samplings[prompt_index], choice),
            arrival_time=arrival_time,
            priority=priority,
            cache_salt=engine_input.cache_salt,
            grammar=rules.grammar,
            reasoning=rules.reasoning,
        )
        for prompt_index, engine_input in enumerate(inputs)
        for choice in range(num_choices)
    ]


def scope_requests(requests: Sequence[EngineCoreRequest], caller: Caller) -> list[EngineCoreRequest]:
    """Say whose requests they are: callers take turns in the queue, and share no cached prefix.

    If they did, the time to the first token would tell one what another has sent.
    """
    if not caller.key_id:
        return list(requests)
    scope, weight = caller.key_id.hex(), caller.limits.weight
    return [
        replace(
            request,
            # No client's own salt holds a slash, so that none can pass for another caller's.
            cache_salt=f"{scope}/{request.cache_salt or ''}",
            tenant=caller.name,
            tenant_weight=weight,
        )
        for request in requests
    ]
