"""When a child that died is started again, and when no more. Pure; the supervisor asks it at every death."""

from collections import deque
from collections.abc import Sequence


class RestartPolicy:
    """Delays that grow from crash to crash, and a limit of crashes within a window of time."""

    def __init__(self, delays: Sequence[float], max_crashes: int, window: float) -> None:
        """Seconds before the first restart, the second, ...; the last one stays. More than `max_crashes` crashes in
        `window` seconds are a loop."""
        self._delays = delays
        self._max_crashes = max_crashes
        self._window = window
        self._crashes: deque[float] = deque()

    def note_crash(self, now: float) -> float | None:
        """Take one crash at `now` (monotonic seconds); seconds until the restart, or None if it crashes in a loop."""
        self._crashes.append(now)
        while self._crashes[0] < now - self._window:
            self._crashes.popleft()
        if len(self._crashes) > self._max_crashes:
            return None
        return self._delays[min(len(self._crashes), len(self._delays)) - 1]

    @property
    def summary(self) -> str:
        """What the limit is, for the message that says it was reached."""
        return f"more than {self._max_crashes} crashes in {self._window:g} s"


def engine_policy() -> RestartPolicy:
    """Of a core: its start is expensive, and what killed it may come again."""
    return RestartPolicy(delays=(1.0, 2.0, 4.0, 8.0, 16.0, 30.0), max_crashes=3, window=600.0)


def frontend_policy() -> RestartPolicy:
    """Of a frontend: nobody is served without it, and it is there again in a second or two."""
    return RestartPolicy(delays=(0.0, 0.0, 0.5, 1.0, 2.0, 5.0), max_crashes=10, window=600.0)
