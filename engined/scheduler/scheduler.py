"""The scheduler: which requests run in a step, how many tokens each, and what their results mean.

Runs in the engine core's busy loop, on one thread. A step is `schedule`, the model, `update_from_output`; requests may
be added, aborted and failed between any two of these calls.
"""

from collections.abc import Callable, Iterable, Mapping

from engined.cache.sequence_cache import SequenceCache
from engined.config.schema import SchedulerConfig
from engined.protocol.engine import EngineCoreOutputs, Finished, FinishReason, SchedulerStats
from engined.protocol.plan import GrammarMasks, ModelRunnerOutput, SchedulerOutput
from engined.scheduler.intake import ResultIntake
from engined.scheduler.masks import build_masks
from engined.scheduler.output_buffer import OutputBuffer
from engined.scheduler.planner import StepPlanner
from engined.scheduler.request import Request
from engined.scheduler.roster import Roster
from engined.scheduler.step import Step


class Scheduler:
    """The requests (Roster), the two halves of a step (StepPlanner, ResultIntake), and what the clients are to be told.

    Invariants, and what follows from them:

    - Every running request gets at least one token in every step: none is admitted without one, and a prefill leaves
      one for each request behind it. So no prompt, however long, makes a stream skip a step. Beside
      streams a step holds as many tokens as its time allows (StepBudget), so none makes them wait long, either.
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
        self._max_sequence_len = min(max_model_len, cache.num_token_slots)
        self._cache = cache
        self._clock = clock
        self._outputs = OutputBuffer()
        self._roster = Roster(config.scheduling_policy, cache, self._outputs)
        self._planner = StepPlanner(config, self._roster, cache, clock)
        self._step: Step | None = None
        """The last one that was planned."""
        self._step_began_at = 0.0
        self._intake = ResultIntake(self._roster, cache, self._outputs)

    # Requests come and go.

    def can_ever_fit(self, request: Request) -> bool:
        """Whether the prompt and one token (none if max_tokens is 0) fit the cache and the model's context."""
        return request.num_prompt_tokens + min(request.sampling.max_tokens, 1) <= self._max_sequence_len

    def add_request(self, request: Request) -> None:
        """Queue a request. One that can never run ends at once, with an error in the next outputs."""
        if request.request_id in self._roster.requests:
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
            self._roster.add(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End these requests; unknown and finished ids are skipped."""
        for request_id in request_ids:
            if request_id in self._roster.requests:
                request = self._roster.requests[request_id]
                aborted = Finished(reason=FinishReason.ABORT, num_preemptions=request.num_preemptions)
                self._roster.finish(request, aborted)

    def abort_client(self, client_index: int) -> None:
        """End all requests of a client that is gone; nobody is told."""
        for request in list(self._roster.requests.values()):
            if request.client_index == client_index:
                self._roster.release(request)
        self._outputs.drop_client(client_index)

    def fail_requests(self, causes: Mapping[str, str]) -> None:
        """End requests with an error text each; what they computed leaves the prefix cache. Unknown ids are skipped."""
        self._roster.fail(causes)

    def fail_all(self, cause: str) -> None:
        """End every request with the same error text."""
        self.fail_requests(dict.fromkeys(self._roster.requests, cause))

    def has_work(self) -> bool:
        """Whether any request is live. If so, the next plan computes at least one token."""
        return bool(self._roster.requests)

    def stats(self) -> SchedulerStats:
        """State now and totals since the start."""
        return SchedulerStats(
            num_running=len(self._roster.running),
            num_waiting=len(self._roster.waiting),
            kv_cache_usage=self._cache.usage,
            num_preemptions=self._roster.num_preemptions,
            prefix_cache_queries=self._planner.prefix_cache_queries,
            prefix_cache_hits=self._planner.prefix_cache_hits,
            num_forced_tokens=self._intake.num_forced_tokens,
            max_step_tokens=0 if self._step is None else self._step.max_num_tokens,
        )

    def waiting_request_ids(self) -> list[str]:
        """The queue, in the order in which its requests will be admitted; preempted ones are among them."""
        return self._roster.waiting.request_ids()

    # A step.

    def schedule(self) -> SchedulerOutput:
        """Plan one step, and allocate the blocks that it needs."""
        self._step_began_at = self._clock()
        plan, self._step = self._planner.plan()
        return plan

    def grammar_masks(self, plan: SchedulerOutput) -> GrammarMasks | None:
        """What the requests with a grammar that sample in this plan may sample; None if there are none.

        A request whose grammar cannot say it ends with an error.
        """
        sampling = [
            request
            for request_id, request in self._roster.constrained.items()
            if request.num_computed_tokens + plan.num_scheduled_tokens.get(request_id, 0) == len(request.token_ids)
        ]
        if not sampling:
            return None
        masks, causes = build_masks(sampling)
        self.fail_requests(causes)
        return masks

    def publish_output(self) -> None:
        """Let later requests find what those of the last plan have generated; best done while the model computes."""
        if self._step is not None:
            self._intake.publish_output(self._step)

    def update_from_output(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> dict[int, EngineCoreOutputs]:
        """Take in the result of the last plan. Returns all outputs since the last step, by client index."""
        assert self._step is not None and self._step.step_id == plan.step_id, "this is not the last plan"
        self._planner.observe_time(self._step, self._clock() - self._step_began_at)
        self._intake.take(self._step, result)
        return self.take_pending_outputs()

    def take_pending_outputs(self) -> dict[int, EngineCoreOutputs]:
        """The outputs that no step has carried yet: the ends of requests, when nothing is left to run."""
        return self._outputs.take(self.stats(), self._clock())
