"""The requests that wait, in the order of the scheduling policy. Owned by the scheduler."""

from bisect import bisect_left, insort
from operator import attrgetter

from engined.config.schema import SchedulingPolicy
from engined.scheduler.fair_share import MAX_OUTPUT_COST, FairShare
from engined.scheduler.request import Request

sort_key = attrgetter("sort_key")


class RequestQueue:
    """A sorted list. Both policies are a sort key, so a preempted request finds its old place again by itself.

    fcfs: fair between tenants, and for each of them in order of arrival here. priority: lower `priority` first, then
    arrival time, then order of arrival here. Under both, background requests come behind all others.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._requests: list[Request] = []
        self._num_added = 0
        self._shares = FairShare()
        self._background_shares = FairShare()
        """Apart, or a tenant's batch would be charged to its other requests, although it takes nothing from anybody."""

    def __len__(self) -> int:
        return len(self._requests)

    def num_in_foreground(self) -> int:
        """Those that are no background requests; they come before those."""
        return bisect_left(self._requests, (True,), key=sort_key)

    def add(self, request: Request) -> None:
        """Give a new request its place."""
        self._num_added += 1
        if self._policy == "priority":
            request.sort_key = (request.is_background, request.priority, request.arrival_time, self._num_added)
        else:
            num_tokens = request.num_prompt_tokens + min(request.sampling.max_tokens, MAX_OUTPUT_COST)
            start = self._shares_of(request).start_time(request.tenant, num_tokens, request.tenant_weight)
            request.sort_key = (request.is_background, start, self._num_added)
        insort(self._requests, request, key=sort_key)

    def put_back(self, request: Request) -> None:
        """Return a preempted request to its place: under fcfs, before all that have not run yet."""
        insort(self._requests, request, key=sort_key)

    def first(self) -> Request:
        """The request that must be admitted next."""
        return self._requests[0]

    def note_admitted(self, request: Request) -> None:
        """A request that was taken out begins to run. (Others are taken out because they are aborted.)"""
        if self._policy == "fcfs":
            self._shares_of(request).note_admitted(int(request.sort_key[1]))

    def request_ids(self) -> list[str]:
        """All that wait, in order."""
        return [request.request_id for request in self._requests]

    def remove(self, request: Request) -> None:
        """Take one request out, wherever it stands."""
        index = bisect_left(self._requests, request.sort_key, key=sort_key)
        assert self._requests[index] is request, f"request {request.request_id} is not in the queue"
        del self._requests[index]

    def _shares_of(self, request: Request) -> FairShare:
        return self._background_shares if request.is_background else self._shares
