"""What the routes below /admin answer. Frontend process."""

from typing import Literal

from msgspec import Struct

from engined.frontend.live_requests import State


class LiveRequestObject(Struct, kw_only=True):
    """One HTTP request that is under way. Neither its prompt nor its output is shown to anybody."""

    id: str
    object: Literal["request"] = "request"
    label: str
    """What its client sees in x-request-id; clients may choose it, so it is no name."""
    key: str
    """Name of the API key that it came with; empty if there was none."""
    endpoint: str
    model: str
    state: State
    """waiting: it has not run yet. preempted: it ran, and waits again. sending: all is generated, but not taken yet."""
    position: int | None
    """Place of its first waiting sequence in the engine's queue, from 1; null if it does not wait there, or if the
    engine did not tell in time."""
    num_sequences: int
    """Its choices, or its texts."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, those that came from the prefix cache."""
    generated_tokens: int
    age_s: float
    """Seconds since it arrived."""
    stream: bool
    background: bool
    """A line of a batch: it runs on what the others leave over."""


class LiveRequestList(Struct, kw_only=True):
    """All requests that are under way, the oldest first."""

    object: Literal["list"] = "list"
    data: list[LiveRequestObject]


class CancelledRequest(Struct, kw_only=True):
    """A request that was ended."""

    id: str
    object: Literal["request"] = "request"
    cancelled: Literal[True] = True


class EngineFacts(Struct, kw_only=True):
    """What the engine reported when it had loaded the model."""

    pid: int
    version: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    num_kv_blocks: int
    block_size: int
    max_model_len: int


class Load(Struct, kw_only=True):
    """What is going on now, and what went on in the last minute (less, if the server is younger)."""

    live_requests: int
    """HTTP requests under way."""
    running: int
    """Sequences in the running batch."""
    waiting: int
    """Sequences that wait for room."""
    kv_cache_usage: float
    """Share of the KV blocks that live requests hold, 0 to 1."""
    preemptions: int
    """Total since the engine started."""
    prefix_cache_hit_rate: float | None
    """Share of the prompt tokens that the prefix cache had, since the engine started; null before the first."""
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    requests_per_s: float
    """HTTP requests that ended, in whatever way."""


class Versions(Struct, kw_only=True):
    """Of what the server is made of."""

    engined: str
    python: str


class ServerStatus(Struct, kw_only=True):
    """How the server is doing."""

    status: Literal["ready", "unavailable"]
    reason: str | None
    """Why it takes no work; null if it does."""
    phase: Literal["starting", "serving", "recovering", "stopping"]
    """Of the daemon."""
    detail: str
    """What the daemon is doing, or what has happened; may be empty."""
    restarts: int
    """Of its processes, since it started."""
    uptime_s: float
    """Seconds since the daemon started."""
    models: list[str]
    """All names of the one model."""
    runner: Literal["generate", "pooling"]
    engine: EngineFacts | None
    """Null until the engine is ready."""
    load: Load
    versions: Versions
