"""Whether anything holds up the event loop of this frontend. Frontend process; measured by `server`."""

import asyncio
import time

SAMPLE_SECONDS = 0.1
"""So whatever blocks the loop for longer than this is seen, if at most this much too short."""
WINDOW_SECONDS = 30.0


class LoopLag:
    """By how much the loop was late when it should have woken us: the worst of the last 30 to 60 seconds."""

    def __init__(self) -> None:
        self._current = 0.0
        self._previous = 0.0
        self._window_start = time.monotonic()

    @property
    def longest(self) -> float:
        """Seconds."""
        return max(self._current, self._previous)

    async def sample(self) -> None:
        """Sleep for a moment, and see for how long it really was."""
        due = time.monotonic() + SAMPLE_SECONDS
        await asyncio.sleep(SAMPLE_SECONDS)
        now = time.monotonic()
        if now - self._window_start > WINDOW_SECONDS:
            self._window_start = now
            self._previous, self._current = self._current, 0.0
        self._current = max(self._current, now - due)
