"""From the fields about reasoning to what the template and the engine do about it. Frontend process; pure."""

from collections.abc import Collection
from typing import Literal

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest, Scalar
from engined.frontend.parsing.format import ReasoningFormat
from engined.frontend.parsing.start_state import StartState, continued_state, reasoning_state
from engined.protocol.reasoning import ReasoningSpec

MAX_BUDGET = 2**31 - 1
_SWITCHES = ("enable_thinking", "thinking")
"""What templates call the variable that turns reasoning on and off."""
_EFFORT = "reasoning_effort"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


Constrained = Literal["nothing", "content", "calls"]
"""What a grammar holds the answer behind the reasoning to; "calls" may also let content through."""


def effort_variables(effort: str | None, variables: Collection[str]) -> dict[str, Scalar]:
    """What `reasoning_effort` sets in the chat template, whose `variables` are given.

    An effort is a wish, which many clients always send: templates that know none are left as they are. Raises
    RequestError for a word that is no effort.
    """
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise RequestError(
            f"{_EFFORT} must be one of {', '.join(EFFORTS)}, not {effort[:64]!r}; to bound the reasoning send "
            "thinking_token_budget",
            param=_EFFORT,
        )
    switch = next((name for name in _SWITCHES if name in variables), None)
    if effort == "none" and switch is not None:
        return {switch: False}
    return {_EFFORT: effort} if _EFFORT in variables else {}


def resolve_budget(request: ChatCompletionRequest, reasoning: ReasoningFormat | None) -> int | None:
    """Most tokens of reasoning; None if there is no bound. Raises RequestError."""
    param, budget = "thinking_token_budget", request.thinking_token_budget
    if budget is None or budget == -1:
        return None
    if not 0 <= budget <= MAX_BUDGET:
        raise RequestError(f"{param} must be from 0 to {MAX_BUDGET}, or -1 for no bound, not {budget}", param=param)
    if reasoning is None:
        raise RequestError(
            f"{param}: this model has no known way to reason: leave it out, or limit the whole answer with max_tokens; "
            "if it does reason, start engined with --reasoning-parser NAME",
            param=param,
            code="unsupported_parameter",
        )
    return budget


def start_state(reasoning: ReasoningFormat | None, prompt: str, continued: str | None) -> StartState:
    """Where the answer begins: inside reasoning, behind it, or before it.

    `continued` is the text of the message that the answer continues, with which the prompt then ends.
    """
    if reasoning is None:
        return "none"
    if continued is not None:
        state = continued_state(reasoning, continued)
        if state != "none":
            return state
        prompt = prompt.removesuffix(continued)
    return reasoning_state(reasoning, prompt)


def reasoning_spec(
    reasoning: ReasoningFormat | None, state: StartState, budget: int | None, constrained: Constrained
) -> ReasoningSpec | None:
    """What the engine must know; None if it need not look for reasoning, or none can come."""
    if reasoning is None or state == "closed" or (budget is None and constrained == "nothing"):
        return None
    prefix = reasoning.content_prefix if constrained == "content" else ""
    start: Literal["open", "optional", "required"] = "open"
    if state == "none":
        start = "required" if reasoning.is_always_begun else "optional"
    return ReasoningSpec(
        begin=reasoning.begin,
        end=reasoning.end,
        separator=reasoning.separator + prefix,
        start=start,
        max_tokens=budget,
    )
