"""Every live request, from where it is added to where it ends. Owned by the scheduler; its two halves share it.

What changes hands on the way is settled here, once: blocks, places, and what the worker and the clients must be told.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping

from engined.cache.sequence_cache import SequenceCache
from engined.config.schema import SchedulingPolicy
from engined.protocol.engine import Finished, FinishReason
from engined.scheduler.output_buffer import OutputBuffer
from engined.scheduler.request import Request, RequestStatus
from engined.scheduler.request_queue import RequestQueue, sort_key


class Roster:
    """The running requests in a list, the others in the queue, both in the order of the policy (see RequestQueue).

    So the victim of a preemption is always the last running request. Whoever reads `requests`, `running` and `waiting`
    changes them only by the methods here.
    """

    def __init__(self, policy: SchedulingPolicy, cache: SequenceCache, outputs: OutputBuffer) -> None:
        self.requests: dict[str, Request] = {}
        self.constrained: dict[str, Request] = {}
        """Those of them with a grammar."""
        self.running: list[Request] = []
        self.waiting = RequestQueue(policy)
        self.num_preemptions = 0
        self.num_changes = 0
        """Grows whenever somebody begins or ceases to run, or gets more in a step than one token."""
        self._cache = cache
        self._outputs = outputs
        self._removed_request_ids: list[str] = []
        self._forced_token_ids: dict[str, list[int]] = {}

    def add(self, request: Request) -> None:
        """Queue a new request."""
        self.requests[request.request_id] = request
        if request.matcher is not None:
            self.constrained[request.request_id] = request
        self.waiting.add(request)

    def start(self, request: Request, num_cached_tokens: int) -> None:
        """Move a waiting request, which has got its blocks, to the running ones."""
        self.waiting.remove(request)
        self.waiting.note_admitted(request)
        self.num_changes += 1
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached_tokens
        insort(self.running, request, key=sort_key)

    def preempt_last(self) -> Request:
        """Send the last running request back to the queue, without its blocks; returns it."""
        request = self.running.pop()
        self._leave_batch(request, is_content_valid=True)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.put_back(request)
        return request

    def finish(self, request: Request, finished: Finished) -> None:
        """End a request and tell its client; what a failed one computed leaves the prefix cache."""
        self._outputs.add_finished(request, finished)
        self.release(request, is_content_valid=finished.reason is not FinishReason.ERROR)

    def fail(self, causes: Mapping[str, str]) -> None:
        """End requests with an error text each, by id. Unknown ids are skipped."""
        for request_id, cause in causes.items():
            request = self.requests.get(request_id)
            if request is not None:
                failed = Finished(reason=FinishReason.ERROR, error=cause, num_preemptions=request.num_preemptions)
                self.finish(request, failed)

    def release(self, request: Request, *, is_content_valid: bool = True) -> None:
        """Forget a request: the one way out of the scheduler."""
        del self.requests[request.request_id]
        self.constrained.pop(request.request_id, None)
        if request.status is RequestStatus.RUNNING:
            del self.running[bisect_left(self.running, request.sort_key, key=sort_key)]
            self._leave_batch(request, is_content_valid)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED

    def num_in_foreground(self) -> int:
        """Running requests that are no background requests; they come before those."""
        if not self.running or not self.running[-1].is_background:
            return len(self.running)
        return bisect_left(self.running, (True,), key=sort_key)

    def num_running_before(self, request: Request) -> int:
        """Running requests of which this waiting one can be the victim."""
        return len(self.running) if request.is_background else self.num_in_foreground()

    def note_forced_tokens(self, request: Request, token_ids: list[int]) -> None:
        """Tokens were appended to a running request that the worker has not sampled."""
        self._forced_token_ids[request.request_id] = token_ids

    def take_removed_request_ids(self) -> list[str]:
        """Requests that left the batch since the last call."""
        removed, self._removed_request_ids = self._removed_request_ids, []
        return removed

    def take_forced_token_ids(self) -> dict[str, list[int]]:
        """What running requests were given since the last call, by id."""
        forced, self._forced_token_ids = self._forced_token_ids, {}
        return forced

    def _leave_batch(self, request: Request, is_content_valid: bool) -> None:
        self._cache.free(request, is_content_valid=is_content_valid)
        self._removed_request_ids.append(request.request_id)
        self._forced_token_ids.pop(request.request_id, None)
        request.attention_at = 0
        self.num_changes += 1
