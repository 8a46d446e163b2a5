"""Fair queueing between tenants: who is how far ahead of the others. Pure; owned by the queue of waiting requests.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each request gets a virtual time at which it would begin if all
tenants shared the engine evenly. A tenant that has sent much is ahead of the others, and waits; one that comes with its
first request begins now. So whatever the others have queued, such a request stands behind at most one of each of them.
A tenant with twice the weight is charged half, and so gets twice as much while both have requests waiting.
"""

MAX_OUTPUT_COST = 1024
"""Output tokens that a request is charged for at most: `max_tokens` is a limit, and rarely reached."""

UNITS_PER_TOKEN = 100
"""Of virtual time, which is whole numbers: they stay exact, however long the engine runs."""


class FairShare:
    """Virtual times of the tenants that are ahead of the others; the rest are forgotten."""

    def __init__(self) -> None:
        self._now = 0
        self._next_start: dict[str, int] = {}

    def start_time(self, tenant: str, num_tokens: int, weight: float) -> int:
        """Virtual time of a new request of `tenant`; its next one starts later by what this one costs."""
        start = max(self._now, self._next_start.get(tenant, 0))
        self._next_start[tenant] = start + max(1, round(num_tokens * UNITS_PER_TOKEN / weight))
        return start

    def note_admitted(self, start_time: int) -> None:
        """A request began: nobody who comes from now on can be before it."""
        if start_time > self._now:
            self._now = start_time
            self._next_start = {tenant: start for tenant, start in self._next_start.items() if start > start_time}
