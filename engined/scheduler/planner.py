"""First half of a step: which requests advance, and by how many tokens each. Owned by the scheduler."""

from collections.abc import Callable

from engined.cache.sequence_cache import SequenceCache
from engined.config.schema import SchedulerConfig
from engined.protocol.engine import Started
from engined.protocol.plan import NewRequestData, SchedulerOutput
from engined.scheduler.request import Request, RequestStatus
from engined.scheduler.roster import Roster
from engined.scheduler.step import SteadyState, Step
from engined.scheduler.step_budget import StepBudget


class StepPlanner:
    """Serves the running requests first, then the waiting ones, while the token budget lasts.

    There is no prefill phase and no decode phase. A request has `token_ids`, and `num_computed_tokens` that tries to
    catch up with their number: by a whole prompt, by a chunk of it, by the one token that was sampled last, or by that
    one and those that a grammar forced after it.
    """

    def __init__(
        self, config: SchedulerConfig, roster: Roster, cache: SequenceCache, clock: Callable[[], float]
    ) -> None:
        # Each needs a token in every step; with seats to spare, there are tokens for a newcomer too.
        self._max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._max_tokens_of_one = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._roster = roster
        self._cache = cache
        self._clock = clock
        self._budget = None if config.max_step_ms == 0 else StepBudget(config.max_step_ms)
        self._num_steps = 0
        self._num_changes = 0
        """Of the roster, when the last step had been planned."""
        self._steady: SteadyState | None = None
        self.prefix_cache_queries = 0
        """Prompt tokens of all requests that have begun and may read the prefix cache."""
        self.prefix_cache_hits = 0

    def observe_time(self, step: Step, seconds: float) -> None:
        """Learn how long a step took; called before its results are taken in."""
        if self._budget is not None:
            self._budget.times.observe(step.size(), seconds)

    def plan(self) -> tuple[SchedulerOutput, Step]:
        """Plan one step, and allocate the blocks that it needs."""
        self._num_steps += 1
        step = Step(self._num_steps, self._max_num_tokens())
        if not self._repeat_last(step):
            self._schedule_running(step)
        self._schedule_waiting(step)
        num_changes = self._roster.num_changes
        repeated = self._steady if self._steady is not None and self._steady.num_changes == num_changes else None
        if self._steady is None and not step.others and num_changes == self._num_changes:
            self._steady = SteadyState(step.decoding, num_changes)
        self._num_changes = num_changes
        plan = SchedulerOutput(
            step_id=step.step_id,
            is_repeat=repeated is not None,
            new_requests=step.new_requests,
            num_scheduled_tokens=step.all_scheduled_tokens() if repeated is None else repeated.num_scheduled_tokens,
            new_block_ids=step.new_block_ids,
            forced_token_ids=self._roster.take_forced_token_ids(),
            removed_request_ids=self._roster.take_removed_request_ids(),
            block_ids_to_zero=self._cache.take_damaged_blocks(),
            num_tokens=step.num_tokens,
        )
        return plan, step

    def _max_num_tokens(self) -> int:
        """Tokens of the next step: all that it can hold, or fewer if somebody's stream would wait for prompts."""
        if self._budget is None or (self._is_steady() and not self._may_admit()):
            return self._max_num_batched_tokens
        running = self._roster.running
        prompts = [request for request in running if _is_in_prompt(request)]
        num_prompts = sum(not request.is_background for request in prompts)
        num_streams = self._roster.num_in_foreground() - num_prompts
        if not num_streams:
            return self._max_num_batched_tokens
        num_seats = self._max_num_seqs - num_streams - num_prompts
        num_prompts += min(num_seats, self._roster.waiting.num_in_foreground())
        context = prompts[0].num_computed_tokens if prompts else 0
        max_num_tokens = self._budget.num_tokens(len(running), num_prompts / num_streams, context)
        return min(max_num_tokens, self._max_num_batched_tokens)

    def _may_admit(self) -> bool:
        """Whether somebody waits, and a seat is free or will be given up."""
        running = self._roster.running
        is_full = len(running) >= self._max_num_seqs and not running[-1].is_background
        return bool(self._roster.waiting) and not is_full

    def _is_steady(self) -> bool:
        """Whether the requests of the last step, of which all decode, are still the same."""
        return self._steady is not None and self._steady.num_changes == self._roster.num_changes

    def _repeat_last(self, step: Step) -> bool:
        """Let the same requests decode as in the last step, if that is how things are.

        256 requests take 8 us so, and 30 us one by one.
        """
        is_steady, steady, self._steady = self._is_steady(), self._steady, None
        if steady is None or not is_steady:
            return False
        for row in steady.advance():
            request = steady.request(row)
            if len(request.token_ids) >= request.attention_at:
                return False
            new_block_ids = self._cache.allocate_slots(request, 1)
            if new_block_ids is None:
                return False
            step.new_block_ids[request.request_id] = new_block_ids
            steady.renew(row)
        step.decoding = steady.requests
        step.token_budget -= len(step.decoding)
        self._steady = steady
        return True

    def _schedule_running(self, step: Step) -> None:
        decoding = step.decoding
        for position, request in enumerate(self._roster.running):  # victims leave its end meanwhile
            num_tokens = len(request.token_ids)
            if num_tokens < request.attention_at:
                if num_tokens <= request.num_slots or self._make_room(request, position, step) is not None:
                    decoding[request.request_id] = request
            elif (num_new_tokens := self._make_room(request, position, step)) is not None:
                self._add(request, num_new_tokens, step)
        step.token_budget -= len(decoding)

    def _make_room(self, request: Request, position: int, step: Step) -> int | None:
        """Allocate blocks for what a running request computes now; the number of its tokens, None if it has lost its
        place.
        """
        running, waiting = self._roster.running, self._roster.waiting
        others_wait = bool(waiting) and not waiting.first().is_background
        while True:
            num_new_tokens = len(request.token_ids) - request.num_computed_tokens
            if num_new_tokens > 1:
                num_kept = len(step.decoding) + len(running) - position - 1
                most = 1 if others_wait and request.is_background else self._max_tokens_of_one
                num_new_tokens = min(num_new_tokens, most, step.token_budget - num_kept)
            new_block_ids = self._cache.allocate_slots(request, num_new_tokens)
            if new_block_ids is not None:
                if new_block_ids:
                    step.new_block_ids[request.request_id] = new_block_ids
                return num_new_tokens
            # The victim has got nothing in this step yet: it is behind, or it is this request itself.
            assert len(running) > 1, "a sequence outgrew the whole cache"
            victim = self._preempt_last(step)
            victim.spare_shift += 1
            step.is_closed |= not victim.is_background
            if victim is request:
                return None

    def _schedule_waiting(self, step: Step) -> None:
        waiting = self._roster.waiting
        while waiting and step.admits(waiting.first()):
            request = waiting.first()
            num_cached_tokens = self._find_room(request, step)
            if num_cached_tokens is None:
                break
            self._start(request, num_cached_tokens)
            num_new_tokens = min(len(request.token_ids) - num_cached_tokens, self._max_tokens_of_one, step.token_budget)
            self._add(request, num_new_tokens, step)
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

    def _add(self, request: Request, num_new_tokens: int, step: Step) -> None:
        """Let a request compute so many tokens; those that come after it in the same step may share their blocks.

        A background request can still lose its place in this step, and others must not count on it.
        """
        step.add(request, num_new_tokens)
        if not request.is_background:
            self._cache.publish_blocks(request, request.num_computed_tokens + num_new_tokens)

    def _find_room(self, request: Request, step: Step) -> int | None:
        """Allocate the blocks of a waiting request, if it can enter now; the number of its cached tokens.

        Background requests leave for one that is none, the last first, until it can.
        """
        running = self._roster.running
        while True:
            if len(running) < self._max_num_seqs:
                num_needed = 1 if self._cache.can_resume else len(request.token_ids)
                if num_needed > step.token_budget:
                    return None
                # Room for the running requests to grow, or the newcomer would soon be their victim; see Scheduler.
                num_spare_blocks = self._roster.num_running_before(request) << request.spare_shift
                num_cached_tokens = self._cache.allocate_sequence(request, num_spare_blocks)
                if num_cached_tokens is not None:
                    return num_cached_tokens
            if request.is_background or not running or not running[-1].is_background:
                return None
            self._preempt_last(step)

    def _start(self, request: Request, num_cached_tokens: int) -> None:
        if request.status is RequestStatus.WAITING:
            request.pending_start = Started(scheduled_time=self._clock(), num_cached_tokens=num_cached_tokens)
            if request.reads_prefix_cache:
                self.prefix_cache_queries += request.num_prompt_tokens
                self.prefix_cache_hits += num_cached_tokens
        self._roster.start(request, num_cached_tokens)

    def _preempt_last(self, step: Step) -> Request:
        """Send the last running request back to the queue, with what the step had for it."""
        victim = self._roster.preempt_last()
        step.remove(victim)
        step.is_closed_to_background = True
        return victim


def _is_in_prompt(request: Request) -> bool:
    return request.num_computed_tokens < request.num_prompt_tokens
