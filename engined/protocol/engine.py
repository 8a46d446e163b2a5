"""Messages between a frontend and an engine core. Fields that most requests lack are sparse dicts, keyed by request id.

Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from engined.protocol.grammar import GrammarSpec
from engined.protocol.pooling import PoolingParams
from engined.protocol.reasoning import ReasoningSpec
from engined.protocol.sampling import SamplingParams


class FinishReason(StrEnum):
    """Why a sequence ended. Each accepted request ends with exactly one of these."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReady:
    """READY, the first frame of a core: what it really allocated."""

    version: str
    pid: int
    dtype: str
    kv_cache_dtype: str
    num_kv_blocks: int
    block_size: int
    max_model_len: int
    """Longest sequence that both the model and the KV cache hold."""
    quantization: str = "none"
    """Of the weights; `dtype` is that of the activations then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCoreRequest:
    """ADD: one sequence to generate."""

    request_id: str
    """Made by the frontend, unique for the life of the daemon."""
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_time: float
    priority: int = 0
    """Lower runs first under the priority policy."""
    is_background: bool = False
    """It runs on what the others leave over, under both policies: a line of a batch."""
    tenant: str = ""
    """Whose request it is: the waiting ones of different tenants are served fairly. Empty: nobody's in particular."""
    tenant_weight: float = 1.0
    """Share of the tenant against others; above 0."""
    cache_salt: str | None = None
    """Prefix blocks are only shared between requests with the same salt."""
    grammar: GrammarSpec | None = None
    """What the output must match."""
    reasoning: ReasoningSpec | None = None
    """Given if reasoning may come before what the grammar constrains, or is bounded."""
    pooling: PoolingParams | None = None
    """Given for a request that is pooled and generates nothing; its `sampling` is then SamplingParams(max_tokens=0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequests:
    """ABORT: forget these requests. Unknown and finished ids are skipped; each live one gets its ABORT output."""

    request_ids: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token that stands there first, then the best alternatives in order.

    Minus infinity is -9999.0, because JSON has no infinity.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Rank of the first token among the whole vocabulary; the most probable has rank 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Facts known when a request first runs."""

    scheduled_time: float
    num_cached_tokens: int
    """Prompt tokens that were read from the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The terminal event of one request."""

    reason: FinishReason
    stop_token_id: int | None = None
    """The stop token that ended it; None for EOS."""
    error: str | None = None
    num_preemptions: int = 0
    is_grammar_complete: bool = False
    """Nothing can follow the output: unlike a stop token, its last token belongs to the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """State and totals of the scheduler after a step."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Share of the blocks that live requests hold, 0 to 1; cached but unused blocks count as free."""
    num_preemptions: int
    prefix_cache_queries: int
    """Total of prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int
    num_forced_tokens: int = 0
    """Total of tokens that grammars forced, which took no forward of their own."""
    max_step_tokens: int = 0
    """Tokens that the last step could hold; fewer than others where prompts came in beside running streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCoreOutputs:
    """OUTPUTS: one frame a step for each frontend. `request_ids[i]` got `new_token_ids[i]`."""

    request_ids: list[str] = field(default_factory=list)
    new_token_ids: list[list[int]] = field(default_factory=list)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """One entry for each new token of the request."""
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """The next positions of the prompt, in order; the first position of a prompt has no entry."""
    started: dict[str, Started] = field(default_factory=dict)
    pooled: dict[str, list[float]] = field(default_factory=dict)
    """The embedding, or the scores of the classes, of a pooled request that ends in this frame."""
    finished: dict[str, Finished] = field(default_factory=dict)
    stats: SchedulerStats | None = None
    timestamp: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilityCall:
    """UTILITY, frontend to core: a rare operation. The table of kinds is closed."""

    call_id: int
    kind: str
    """"reset_prefix_cache": forget all cached blocks that no request holds.
    "list_waiting": tell the order of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilityResult:
    """UTILITY, core to frontend: the answer to the call of the same id."""

    call_id: int
    error: str | None = None
    waiting_request_ids: list[str] = field(default_factory=list)
    """Of "list_waiting": the requests of all frontends that wait for a seat or for blocks, the next one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFatal:
    """FATAL: the last frame of a core that is about to exit. Every open request has failed."""

    cause: str
