"""What keeps a client from holding a connection for nothing. Frontend process; owned by `http_connection`."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

CHECKS_PER_STALL = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTimes:
    """Seconds that a client may let pass."""

    head: float = 10.0
    """Until the head of a request is complete: from the connection on, later from its first byte on."""
    idle: float = 75.0
    """Between two requests; longer than load balancers keep an idle connection, so that it is they who close it."""
    stall: float = 30.0
    """Without taking anything of an answer that waits for it."""


DEFAULT_TIMES = ConnectionTimes()


class HeadDeadline:
    """A timer that can be started and stopped again and again; `on_late` is called when it runs out."""

    def __init__(self, seconds: float, on_late: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_late = on_late
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to count; if it counts already, that goes on."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def stop(self) -> None:
        """The head is complete, or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._on_late()


class StallWatch:
    """Aborts a connection whose client takes nothing of what waits to be sent.

    It goes by how much waits in this process, so that any progress counts, however slow. It outlives the closing of the
    transport, which by itself would wait for such a client for ever.
    """

    def __init__(self, seconds: float, transport: asyncio.Transport) -> None:
        self._seconds = seconds
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._num_waiting = 0
        self._last_progress = 0.0

    def start(self) -> None:
        """Bytes have begun to wait."""
        self._num_waiting = self._transport.get_write_buffer_size()
        self._last_progress = self._loop.time()
        self._check_later()

    def stop(self) -> None:
        """Everything was taken, or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self) -> None:
        self.stop()
        self._timer = self._loop.call_later(self._seconds / CHECKS_PER_STALL, self._check)

    def _check(self) -> None:
        num_waiting = self._transport.get_write_buffer_size()
        now = self._loop.time()
        if num_waiting < self._num_waiting:
            self._last_progress = now
        self._num_waiting = num_waiting
        if now - self._last_progress < self._seconds:
            self._check_later()
            return
        logger.info("disconnected a client that took nothing of %d bytes for %.0f s", num_waiting, self._seconds)
        self._transport.abort()
