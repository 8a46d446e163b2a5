"""The deadlines that a request sets itself, and what happens when they pass. Frontend process; runs with a generation.

Nothing that exists is thrown away: an answer that has begun ends there, with what it has; one that has not is a 408.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from engined.errors import RequestError
from engined.frontend.output.collector import RequestOutputCollector

TIMEOUT_STOP_REASON = "timeout"
"""The `stop_reason` of a choice that a deadline ended; its `finish_reason` is "abort"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Seconds after the request's arrival; None is no limit."""

    total: float | None = None
    first_token: float | None = None


class Deadlines:
    """The running timers of one generation. `cut` ends all choices with what they have; it is called at most once."""

    def __init__(
        self, limits: TimeLimits, arrival_time: float, collector: RequestOutputCollector, cut: Callable[[], None]
    ) -> None:
        self._collector = collector
        self._cut = cut
        loop, elapsed = asyncio.get_running_loop(), time.monotonic() - arrival_time
        self._timers: list[asyncio.TimerHandle] = []
        if limits.first_token is not None:
            self._timers.append(loop.call_later(limits.first_token - elapsed, self._miss, "ttft_timeout_s"))
        if limits.total is not None:
            self._timers.append(loop.call_later(limits.total - elapsed, self._end))

    def cancel(self) -> None:
        """The generation is over."""
        for timer in self._timers:
            timer.cancel()

    def _miss(self, param: str) -> None:
        if self._collector.first_output_time is None:
            self._collector.put_error(
                RequestError(
                    f"no token came within {param}: try again later, or allow more time",
                    param=param,
                    code="timeout",
                    status=408,
                )
            )

    def _end(self) -> None:
        self._miss("timeout_s")
        if self._collector.first_output_time is not None:
            self._cut()
