"""How much of something may be used in a minute. Pure."""

SECONDS_PER_MINUTE = 60.0


class TokenBucket:
    """Fills evenly, up to one minute's worth. Times are seconds of CLOCK_MONOTONIC.

    What costs more than a full bucket can hold is let through when it is full, and leaves a debt, for it could never be
    let through otherwise.
    """

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._time = now

    def seconds_until(self, cost: float, now: float) -> float:
        """Until `cost` may be taken; 0 if it may be now."""
        self._fill(now)
        missing = min(cost, self.per_minute) - self._level
        return max(0.0, missing * SECONDS_PER_MINUTE / self.per_minute)

    def take(self, cost: float) -> None:
        """Use up `cost`; give some back with a negative one. Whether there is enough is asked before."""
        self._level = min(self._level - cost, float(self.per_minute))

    def remaining(self, now: float) -> int:
        """What could be taken now."""
        self._fill(now)
        return max(0, int(self._level))

    def seconds_until_full(self, now: float) -> float:
        """Until a minute's worth is there again."""
        return self.seconds_until(self.per_minute, now)

    def _fill(self, now: float) -> None:
        filled = self._level + (now - self._time) * self.per_minute / SECONDS_PER_MINUTE
        self._level = min(filled, float(self.per_minute))
        self._time = now
