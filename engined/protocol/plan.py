"""Messages between an engine core and its workers: the plan of one step, and its result.

A request is sent whole once, when it starts (or starts again after a preemption); afterwards only what changed.
Workers append the tokens that they sample themselves, so a decode step names a request and nothing else.
"""

from dataclasses import dataclass, field

from engined.protocol.engine import TokenLogprobs
from engined.protocol.pooling import PoolingParams
from engined.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequestData:
    """A request that enters the worker's batch."""

    request_id: str
    token_ids: list[int]
    """The prompt, then what was generated before a preemption."""
    num_prompt_tokens: int
    sampling: SamplingParams
    block_ids: list[int]
    """Empty for an encoder, which keeps no KV cache."""
    num_computed_tokens: int
    """Tokens whose KV entries already exist: the prefix hit."""
    pooling: PoolingParams | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """The plan of one step. A request samples in this step if its scheduled tokens reach the end of its tokens."""

    step_id: int
    is_repeat: bool = False
    """The same requests as in the plan before compute one token each; links to workers leave them out then."""
    new_requests: list[NewRequestData] = field(default_factory=list)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    """Every request of this step, new ones included: first those that decode and do nothing else."""
    new_block_ids: dict[str, list[int]] = field(default_factory=dict)
    """Blocks appended to requests that were already in the batch."""
    forced_token_ids: dict[str, list[int]] = field(default_factory=dict)
    """Tokens that follow the last sampled one of requests that were already in the batch: their grammars left no
    choice."""
    removed_request_ids: list[str] = field(default_factory=list)
    """Finished, aborted or preempted since the last plan: to be dropped before anything else is done."""
    block_ids_to_zero: list[int] = field(default_factory=list)
    """Blocks whose content is damaged: a masked NaN would still spoil the attention of their next owner."""
    num_tokens: int = 0
    """Sum of `num_scheduled_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarMasks:
    """What the requests that sample in a step and have a grammar may sample; goes with the second call of the step."""

    request_ids: list[str]
    rows: bytes | bytearray | memoryview
    """One row for each request, all of the same size: bit i % 8 of byte i // 8 allows token i."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunnerOutput:
    """The result of one step: `request_ids[i]` sampled `sampled_token_ids[i]`. Requests in mid-prompt are absent.

    Requests with one scheduled token come first, then the others, both in the order of the plan.
    Of a pooling model it holds what was pooled, and nothing was sampled.
    """

    request_ids: list[str] = field(default_factory=list)
    sampled_token_ids: list[list[int]] = field(default_factory=list)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    pooled: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """Requests that must end with an error, for example because their logits are not finite."""
