"""The scheduler: which requests run in a step, how many tokens each, and what their results mean.

Runs in the engine core's busy loop, on one thread. A step is `schedule`, the model, `update_from_output`; requests may
be added, aborted and failed between any two of these calls.
"""

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping

from engined import faults
from engined.cache.sequence_cache import SequenceCache
from engined.config.schema import SchedulerConfig
from engined.errors import GrammarError
from engined.grammar.matcher import GrammarMatcher
from engined.protocol.engine import (
    EngineCoreOutputs,
    Finished,
    FinishReason,
    SchedulerStats,
    Started,
    TokenLogprobs,
)
from engined.protocol.plan import GrammarMasks, ModelRunnerOutput, NewRequestData, SchedulerOutput
from engined.scheduler.masks import build_masks
from engined.scheduler.output_buffer import OutputBuffer
from engined.scheduler.request import Request, RequestStatus
from engined.scheduler.request_queue import RequestQueue, sort_key
from engined.scheduler.stop import check_constrained_stop, check_stop

logger = logging.getLogger(__name__)


class _Step:
    """The plan of a step while it is made."""

    __slots__ = (
        "is_closed",
        "is_closed_to_background",
        "new_block_ids",
        "new_requests",
        "num_scheduled_tokens",
        "token_budget",
    )

    def __init__(self, token_budget: int) -> None:
        self.token_budget = token_budget
        self.num_scheduled_tokens: dict[str, int] = {}
        self.new_block_ids: dict[str, list[int]] = {}
        self.new_requests: list[NewRequestData] = []
        self.is_closed = False
        """A request lost its place for want of blocks, so nobody enters."""
        self.is_closed_to_background = False
        """A background request lost its place, so no other one enters."""

    def admits(self, request: Request) -> bool:
        """Whether a waiting request may enter in this step."""
        return not (self.is_closed_to_background if request.is_background else self.is_closed)


class Scheduler:
    """Owns every live request: the running ones in a list, the others in the queue.

    Both are in the order of the policy (see RequestQueue), so the victim of a preemption is always the last running
    request. Invariants, and what follows from them:

    - Every running request gets at least one token in every step: none is admitted without one, and a prefill leaves
      one for each request behind it. So no prompt, however long, makes a stream skip a step.
    - A request enters with blocks for all its tokens, so prefills cannot take blocks from each other, and only when its
      turn has come: nothing overtakes the first of the queue. A waiting request never displaces a running one, except
      as follows.
    - Background requests run on what the others leave over. They stand behind all others, and when another one lacks a
      seat or blocks, the last of them is preempted for it, in the same step; while another one waits, each prefill of
      theirs is held to one token. So if after a plan any other request still waits, then no background request runs
      beside it, or the step's tokens went to others, less one for each background request.
    - The first in order is never preempted, and a sequence never outgrows the whole cache (it ends with "length"). So
      under fcfs a request ends at the latest after as many steps as it and all requests before it have prompt and
      output tokens together. Under priority, better requests that keep arriving can hold it up for ever; without
      them, it waits at most for those that run and those that are better.
    - A sequence that cannot be resumed (an encoder's) runs whole in one step, or waits for the next one. A prompt that
      no step can hold is refused, so the first of the queue always enters a step of its own.
    - A request that was preempted for want of blocks comes back only with twice the spare blocks of the last time, or
      when nothing runs. So under fcfs it is preempted at most log2(number of blocks) + 1 times (a background request:
      as often as others come).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: SequenceCache,
        max_model_len: int,
        clock: Callable[[], float],
    ) -> None:
        # Each needs a token in every step; with seats to spare, there are tokens for a newcomer too.
        self._max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._max_tokens_of_one = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._max_sequence_len = min(max_model_len, cache.num_token_slots)
        # Output is shared once its request has ended, so it may be published late. Four blocks at a time halve the
        # cost of hashing, and taking turns spreads it, even if all requests fill their blocks in the same step.
        self._output_publish_interval = 4 * cache.block_size
        self._cache = cache
        self._clock = clock

        self._requests: dict[str, Request] = {}
        self._constrained: dict[str, Request] = {}
        """Those of them with a grammar."""
        self._forced_token_ids: dict[str, list[int]] = {}
        """Appended to running requests since the last plan, which the worker does not know yet."""
        self._running: list[Request] = []
        self._waiting = RequestQueue(config.scheduling_policy)
        self._removed_request_ids: list[str] = []
        """Left the batch since the last plan."""
        self._outputs = OutputBuffer()

        self._num_steps = 0
        self._num_preemptions = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0
        self._num_forced_tokens = 0

    # Requests come and go.

    def can_ever_fit(self, request: Request) -> bool:
        """Whether the prompt and one token (none if max_tokens is 0) fit the cache and the model's context."""
        return request.num_prompt_tokens + min(request.sampling.max_tokens, 1) <= self._max_sequence_len

    def add_request(self, request: Request) -> None:
        """Queue a request. One that can never run ends at once, with an error in the next outputs."""
        if request.request_id in self._requests:
            # Their outputs could not be told apart. It takes a faulty frontend, and must not harm the others.
            cause = f"request id {request.request_id} was used for two requests at once"
            self.fail_requests({request.request_id: cause})
            self._outputs.add_finished(request, Finished(reason=FinishReason.ERROR, error=cause))
        elif not self.can_ever_fit(request):
            cause = (
                f"the prompt has {request.num_prompt_tokens} tokens, but prompt and output together are limited to "
                f"{self._max_sequence_len} tokens by the KV cache and the context length: shorten the prompt"
            )
            self._outputs.add_finished(request, Finished(reason=FinishReason.ERROR, error=cause))
        else:
            request.max_num_tokens = min(request.max_num_tokens, self._max_sequence_len)
            self._requests[request.request_id] = request
            if request.matcher is not None:
                self._constrained[request.request_id] = request
            self._waiting.add(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End these requests; unknown and finished ids are skipped."""
        for request_id in request_ids:
            if request_id in self._requests:
                request = self._requests[request_id]
                aborted = Finished(reason=FinishReason.ABORT, num_preemptions=request.num_preemptions)
                self._finish(request, aborted)

    def abort_client(self, client_index: int) -> None:
        """End all requests of a client that is gone; nobody is told."""
        for request in list(self._requests.values()):
            if request.client_index == client_index:
                self._release(request)
        self._outputs.drop_client(client_index)

    def fail_requests(self, causes: Mapping[str, str]) -> None:
        """End requests with an error text each; what they computed leaves the prefix cache. Unknown ids are skipped."""
        for request_id, cause in causes.items():
            request = self._requests.get(request_id)
            if request is not None:
                failed = Finished(reason=FinishReason.ERROR, error=cause, num_preemptions=request.num_preemptions)
                self._finish(request, failed)

    def fail_all(self, cause: str) -> None:
        """End every request with the same error text."""
        self.fail_requests(dict.fromkeys(self._requests, cause))

    def has_work(self) -> bool:
        """Whether any request is live. If so, the next plan computes at least one token."""
        return bool(self._requests)

    def stats(self) -> SchedulerStats:
        """State now and totals since the start."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_cache_usage=self._cache.usage,
            num_preemptions=self._num_preemptions,
            prefix_cache_queries=self._prefix_cache_queries,
            prefix_cache_hits=self._prefix_cache_hits,
            num_forced_tokens=self._num_forced_tokens,
        )

    def waiting_request_ids(self) -> list[str]:
        """The queue, in the order in which its requests will be admitted; preempted ones are among them."""
        return self._waiting.request_ids()

    # First half of a step.

    def schedule(self) -> SchedulerOutput:
        """Plan one step, and allocate the blocks that it needs.

        There is no prefill phase and no decode phase. A request has `token_ids`, and `num_computed_tokens` that tries
        to catch up with their number: by a whole prompt, by a chunk of it, by the one token that was sampled last, or
        by that one and those that a grammar forced after it.
        Running requests are served first, then waiting ones, while the token budget lasts.
        """
        step = _Step(self._max_num_batched_tokens)
        self._schedule_running(step)
        self._schedule_waiting(step)
        removed_request_ids, self._removed_request_ids = self._removed_request_ids, []
        forced_token_ids, self._forced_token_ids = self._forced_token_ids, {}
        self._num_steps += 1
        return SchedulerOutput(
            step_id=self._num_steps,
            new_requests=step.new_requests,
            num_scheduled_tokens=step.num_scheduled_tokens,
            new_block_ids=step.new_block_ids,
            forced_token_ids=forced_token_ids,
            removed_request_ids=removed_request_ids,
            block_ids_to_zero=self._cache.take_damaged_blocks(),
            num_tokens=self._max_num_batched_tokens - step.token_budget,
        )

    def _schedule_running(self, step: _Step) -> None:
        running, allocate_slots = self._running, self._cache.allocate_slots
        num_scheduled_tokens, token_budget = step.num_scheduled_tokens, step.token_budget
        others_wait = bool(self._waiting) and not self._waiting.first().is_background
        num_served = 0
        while num_served < len(running):
            request = running[num_served]
            num_new_tokens = len(request.token_ids) - request.num_computed_tokens
            if num_new_tokens > 1:
                num_behind = len(running) - num_served - 1
                most = 1 if others_wait and request.is_background else self._max_tokens_of_one
                num_new_tokens = min(num_new_tokens, most, token_budget - num_behind)
            new_block_ids = allocate_slots(request, num_new_tokens)
            if new_block_ids is None:
                # The victim has got nothing in this step yet: it is behind, or it is this request itself.
                assert len(running) > 1, "a sequence outgrew the whole cache"
                victim = running.pop()
                victim.spare_shift += 1
                step.is_closed |= not victim.is_background
                self._preempt(victim, step)
                continue
            if new_block_ids:
                step.new_block_ids[request.request_id] = new_block_ids
            num_scheduled_tokens[request.request_id] = num_new_tokens
            token_budget -= num_new_tokens
            num_served += 1
        step.token_budget = token_budget

    def _schedule_waiting(self, step: _Step) -> None:
        while self._waiting and step.admits(self._waiting.first()):
            request = self._waiting.first()
            num_cached_tokens = self._find_room(request, step)
            if num_cached_tokens is None:
                break
            self._waiting.remove(request)
            self._waiting.note_admitted(request)
            self._start(request, num_cached_tokens)
            num_new_tokens = min(len(request.token_ids) - num_cached_tokens, self._max_tokens_of_one, step.token_budget)
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens
            step.new_requests.append(
                NewRequestData(
                    request_id=request.request_id,
                    token_ids=request.token_ids.copy(),  # a worker in this process appends to its own
                    num_prompt_tokens=request.num_prompt_tokens,
                    sampling=request.sampling,
                    block_ids=self._cache.block_ids(request),
                    num_computed_tokens=num_cached_tokens,
                    pooling=request.pooling,
                )
            )

    def _find_room(self, request: Request, step: _Step) -> int | None:
        """Allocate the blocks of a waiting request, if it can enter now; the number of its cached tokens.

        Background requests leave for one that is none, the last first, until it can.
        """
        running = self._running
        while True:
            if len(running) < self._max_num_seqs:
                num_needed = 1 if self._cache.can_resume else len(request.token_ids)
                if num_needed > step.token_budget:
                    return None
                # Room for the running requests to grow, or the newcomer would soon be their victim; see the class.
                num_spare_blocks = self._num_running_before(request) << request.spare_shift
                num_cached_tokens = self._cache.allocate_sequence(request, num_spare_blocks)
                if num_cached_tokens is not None:
                    return num_cached_tokens
            if request.is_background or not running or not running[-1].is_background:
                return None
            self._preempt(running.pop(), step)

    def _num_running_before(self, request: Request) -> int:
        """Running requests of which this one can be the victim."""
        if request.is_background or not self._running or not self._running[-1].is_background:
            return len(self._running)
        return bisect_left(self._running, (True,), key=sort_key)

    def _start(self, request: Request, num_cached_tokens: int) -> None:
        if request.status is RequestStatus.WAITING:
            request.pending_start = Started(scheduled_time=self._clock(), num_cached_tokens=num_cached_tokens)
            if request.reads_prefix_cache:
                self._prefix_cache_queries += request.num_prompt_tokens
                self._prefix_cache_hits += num_cached_tokens
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached_tokens
        insort(self._running, request, key=sort_key)

    def _preempt(self, request: Request, step: _Step) -> None:
        """Send a request that has just left the running ones back to the queue, with what the step had for it."""
        step.token_budget += step.num_scheduled_tokens.pop(request.request_id, 0)
        step.new_block_ids.pop(request.request_id, None)
        step.is_closed_to_background = True
        self._cache.free(request)
        self._removed_request_ids.append(request.request_id)
        self._forced_token_ids.pop(request.request_id, None)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self._num_preemptions += 1
        self._waiting.put_back(request)

    # Between the two halves, while the model computes.

    def grammar_masks(self, plan: SchedulerOutput) -> GrammarMasks | None:
        """What the requests with a grammar that sample in this plan may sample; None if there are none.

        A request whose grammar cannot say it ends with an error.
        """
        sampling = [
            request
            for request_id, request in self._constrained.items()
            if request.num_computed_tokens + plan.num_scheduled_tokens.get(request_id, 0) == len(request.token_ids)
        ]
        if not sampling:
            return None
        masks, causes = build_masks(sampling)
        self.fail_requests(causes)
        return masks

    # Second half of a step.

    def update_from_output(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> dict[int, EngineCoreOutputs]:
        """Take in the result of the last plan. Returns all outputs since the last step, by client index.

        A plan that computes tokens i to j - 1 of a request with prompt_logprobs yields the entries of positions i + 1
        to j, as far as they are in the prompt.
        """
        self.fail_requests(result.errors)
        requests = self._requests
        sampled = dict(zip(result.request_ids, result.sampled_token_ids, strict=True))
        turn = plan.step_id
        for request_id, num_scheduled_tokens in plan.num_scheduled_tokens.items():
            request = requests.get(request_id)
            if request is None:
                continue  # aborted or failed while the step ran
            turn += 1  # prompts are published at once, output in turns: see _output_publish_interval
            is_publishing = num_scheduled_tokens > 1 or turn % self._output_publish_interval == 0
            try:
                self._take_result(request, num_scheduled_tokens, sampled.get(request_id), result, is_publishing)
            except Exception as error:  # the boundary of this request: its neighbours are in the same step
                logger.exception("request %s: its result cannot be taken in", request_id)
                self.fail_requests({request_id: f"internal error: {error}"})
        return self.take_pending_outputs()

    def take_pending_outputs(self) -> dict[int, EngineCoreOutputs]:
        """The outputs that no step has carried yet: the ends of requests, when nothing is left to run."""
        return self._outputs.take(self.stats(), self._clock())

    def _take_result(
        self,
        request: Request,
        num_scheduled_tokens: int,
        sampled_token_ids: list[int] | None,
        result: ModelRunnerOutput,
        is_publishing: bool,
    ) -> None:
        """Take in what the last plan computed for one request."""
        faults.point("request.update")
        request.num_computed_tokens += num_scheduled_tokens
        if is_publishing:
            self._cache.publish_computed_blocks(request)
        if result.prompt_logprobs and request.request_id in result.prompt_logprobs:
            self._report_prompt_logprobs(request, num_scheduled_tokens, result.prompt_logprobs[request.request_id])
        if request.num_computed_tokens < len(request.token_ids):
            return
        if request.pooling is not None:
            self._take_pooled(request, result)
        else:
            self._append_tokens(request, sampled_token_ids, result)

    def _append_tokens(self, request: Request, new_token_ids: list[int] | None, result: ModelRunnerOutput) -> None:
        """Append what was sampled after the last token, up to the one that ends the sequence."""
        num_tokens_before = len(request.token_ids)
        if num_tokens_before >= request.max_num_tokens:  # max_tokens is 0: only the prompt was of interest
            self._finish(request, Finished(reason=FinishReason.LENGTH, num_preemptions=request.num_preemptions))
            return
        if not new_token_ids:
            self.fail_requests({request.request_id: "the worker sampled no token for this request"})
            return
        if request.matcher is not None:
            self._append_constrained(request, request.matcher, new_token_ids, result)
            return
        finished = None
        for token_id in new_token_ids:
            request.token_ids.append(token_id)
            finished = check_stop(request)
            if finished is not None:
                break
        logprobs = result.logprobs.get(request.request_id) if result.logprobs else None
        if finished is None:
            self._outputs.add_tokens(request, new_token_ids, logprobs)
        else:
            num_appended = len(request.token_ids) - num_tokens_before
            self._outputs.add_tokens(request, new_token_ids[:num_appended], logprobs and logprobs[:num_appended])
            self._finish(request, finished)

    def _append_constrained(
        self, request: Request, matcher: GrammarMatcher, sampled_token_ids: list[int], result: ModelRunnerOutput
    ) -> None:
        """Append what was sampled, and what its grammar forces after it (jump-forward)."""
        num_tokens_before = len(request.token_ids)
        forced: list[int] = []
        try:
            finished = _extend(request, matcher, sampled_token_ids)
            if finished is None and request.jumps_forward:
                num_sampled = len(request.token_ids)
                finished = _extend(request, matcher, matcher.forced_tokens())
                forced = request.token_ids[num_sampled:]
        except GrammarError as error:
            self.fail_requests({request.request_id: str(error)})
            return
        self._num_forced_tokens += len(forced)
        new_token_ids = request.token_ids[num_tokens_before:]
        logprobs = result.logprobs.get(request.request_id) if result.logprobs else None
        self._outputs.add_tokens(request, new_token_ids, logprobs and logprobs[: len(new_token_ids)])
        if finished is not None:
            self._finish(request, finished)
        elif forced:
            self._forced_token_ids[request.request_id] = forced

    def _take_pooled(self, request: Request, result: ModelRunnerOutput) -> None:
        """End a pooled request with its result."""
        vector = result.pooled.get(request.request_id)
        if vector is None:
            self.fail_requests({request.request_id: "the worker gave no result for this request"})
            return
        self._outputs.add_pooled(request, vector)
        self._finish(request, Finished(reason=FinishReason.STOP, num_preemptions=request.num_preemptions))

    def _report_prompt_logprobs(
        self, request: Request, num_scheduled_tokens: int, entries: list[TokenLogprobs]
    ) -> None:
        """Pass on the entries of the chunk just computed, less those that were sent before a preemption."""
        num_computed_before = request.num_computed_tokens - num_scheduled_tokens
        new_entries = entries[max(0, request.num_prompt_logprobs_sent - num_computed_before) :]
        if new_entries:
            request.num_prompt_logprobs_sent += len(new_entries)
            self._outputs.add_prompt_logprobs(request, new_entries)

    def _finish(self, request: Request, finished: Finished) -> None:
        self._outputs.add_finished(request, finished)
        self._release(request, is_content_valid=finished.reason is not FinishReason.ERROR)

    def _release(self, request: Request, *, is_content_valid: bool = True) -> None:
        """Forget a request: the one way out of the scheduler."""
        del self._requests[request.request_id]
        self._constrained.pop(request.request_id, None)
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
            self._cache.free(request, is_content_valid=is_content_valid)
            self._removed_request_ids.append(request.request_id)
            self._forced_token_ids.pop(request.request_id, None)
        else:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED


def _extend(request: Request, matcher: GrammarMatcher, token_ids: list[int]) -> Finished | None:
    """Append tokens up to the one that ends the sequence. Raises GrammarError if the grammar forbids one."""
    for token_id in token_ids:
        request.token_ids.append(token_id)
        finished = check_constrained_stop(request, matcher)
        if finished is not None:
            return finished
    return None
