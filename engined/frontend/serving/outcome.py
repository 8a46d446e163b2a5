"""What became of a request that ran, and its line of the log. Frontend process; made by the serving layer at its end.

Ids, names and numbers only: prompts, outputs and keys are never logged, nor are messages that may quote them.
"""

import asyncio
import dataclasses
import logging
import time
from dataclasses import dataclass

from engined.errors import EnginedError
from engined.frontend.http_errors import error_code, error_status
from engined.frontend.live_requests import LiveRequest, RequestInfo
from engined.frontend.message_errors import OVERLOADED_STATUS, speaks_messages
from engined.log.formats import printable

logger = logging.getLogger(__name__)

CLIENT_DISCONNECT = "client_disconnect"
CLIENT_GONE_STATUS = 499
"""In the log only: the client closed its connection before it had its answer. The number is nginx's."""
_MAX_CAUSE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a request ended."""

    status: int
    reason: str
    """The finish reason of a choice, those of several with commas; "client_disconnect", "done" or "error"."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """What the log says of a request that ran. As JSON it has all fields, always."""

    id: str
    """Of the response: made by the server."""
    label: str
    """The request id that the client sees."""
    key: str
    """The name of the API key; empty where there is none."""
    endpoint: str
    status: int
    finish_reason: str
    error: str | None
    num_sequences: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    reasoning_tokens: int
    """Of those generated; counted when a choice ends. 0 where the answer's reasoning is not told apart."""
    queue_seconds: float | None
    """From arrival to the first step with one of its sequences; None if there was none."""
    first_output_seconds: float | None
    """From arrival to the first token or result; None if there was none."""
    total_seconds: float


def log_outcome(info: RequestInfo, ending: Ending, live: LiveRequest | None, num_reasoning_tokens: int = 0) -> None:
    """Write the line about one request. Without `live` it failed before the engine had it."""

    def since_arrival(event: float | None) -> float | None:
        return None if event is None else event - info.arrival_time

    sequences = [] if live is None else live.sequences
    started_times = [sequence.times.scheduled for sequence in sequences if sequence.times.scheduled is not None]
    outcome = RequestOutcome(
        id=info.response_id,
        label=info.label,
        key=info.caller.name,
        endpoint=info.endpoint,
        status=ending.status,
        finish_reason=ending.reason,
        error=ending.error,
        num_sequences=len(sequences),
        prompt_tokens=info.num_prompt_tokens,
        cached_tokens=0 if live is None else live.num_cached_tokens,
        generated_tokens=0 if live is None else live.num_generated_tokens,
        reasoning_tokens=num_reasoning_tokens,
        queue_seconds=since_arrival(min(started_times, default=None)),
        first_output_seconds=since_arrival(None if live is None else live.collector.first_output_time),
        total_seconds=time.monotonic() - info.arrival_time,
    )
    level = logging.INFO if outcome.status < 500 else logging.WARNING
    logger.log(level, "%s", _sentence(outcome), extra={"request": dataclasses.asdict(outcome)})


def failed(error: BaseException, endpoint: str) -> Ending:
    """The ending of a request that was answered with `error`, or that nobody waits for any more."""
    if isinstance(error, asyncio.CancelledError | ConnectionError):
        return Ending(status=CLIENT_GONE_STATUS, reason=CLIENT_DISCONNECT)
    status = error_status(error) if isinstance(error, Exception) else 500
    if status == 503 and speaks_messages(endpoint):
        status = OVERLOADED_STATUS
    return Ending(status=status, reason="error", error=describe_error(error))


def describe_error(error: BaseException) -> str:
    """A message about a request may quote it: of those the code is all we tell. A failure of ours is told in full."""
    is_ours = isinstance(error, EnginedError) and error_status(error) >= 500
    return str(error)[:_MAX_CAUSE] if is_ours else error_code(error)


def _sentence(outcome: RequestOutcome) -> str:
    ending = outcome.finish_reason + (f" ({outcome.error})" if outcome.error else "")
    tokens = f"{outcome.prompt_tokens} prompt tokens"
    if outcome.cached_tokens:
        tokens += f" ({outcome.cached_tokens} cached)"
    if outcome.generated_tokens:
        tokens += f", {outcome.generated_tokens} generated"
    if outcome.reasoning_tokens:
        tokens += f" ({outcome.reasoning_tokens} of them reasoning)"
    if outcome.num_sequences > 1:
        tokens += f" in {outcome.num_sequences} sequences"
    who = " ".join(part for part in (f"({outcome.label})", outcome.key, outcome.endpoint) if part)
    return printable(
        f"{outcome.id} {who} {outcome.status}: {ending}; {tokens}; queued {_seconds(outcome.queue_seconds)}, "
        f"first output {_seconds(outcome.first_output_seconds)}, total {_seconds(outcome.total_seconds)}"
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
