"""How fast counters have grown lately. Frontend process: `server` runs it, the admin routes read it.

A sample of all counters is taken each second, so that counting itself costs nothing more.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

SAMPLE_SECONDS = 1.0
WINDOW_SECONDS = 60.0

Counts = Sequence[float]


class RecentRates:
    """Growth of some counters per second, over the last minute or as long as there has been anything to sample."""

    def __init__(self, read_counts: Callable[[], Counts], clock: Callable[[], float]) -> None:
        """`read_counts` gives the counters, always in the same order; `clock` the time in seconds."""
        self._read_counts = read_counts
        self._clock = clock
        self._samples = deque([(clock(), read_counts())], maxlen=round(WINDOW_SECONDS / SAMPLE_SECONDS) + 1)

    def sample(self) -> None:
        """Take note of the counters; to be called each SAMPLE_SECONDS."""
        self._samples.append((self._clock(), self._read_counts()))

    def read(self) -> list[float]:
        """The rate of each counter."""
        begin, first = self._samples[0]
        # One that just began has not run long enough to be divided by.
        seconds = max(self._clock() - begin, SAMPLE_SECONDS)
        return [(now - then) / seconds for now, then in zip(self._read_counts(), first, strict=True)]

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_SECONDS)
