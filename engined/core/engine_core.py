"""The engine core: one step, and the handling of one command. Used by the busy loop only, on one thread."""

import logging
from collections.abc import Callable
from typing import Literal

from engined import faults
from engined.cache.sequence_cache import SequenceCache
from engined.core.commands import (
    AbortRequests,
    AddRequest,
    CallUtility,
    ClientGone,
    Command,
    GrammarCompiled,
    RefuseRequest,
    Send,
)
from engined.core.grammar_queue import GrammarQueue
from engined.executor.interface import Executor
from engined.grammar.matcher import GrammarMatcher
from engined.protocol.engine import EngineCoreOutputs, Finished, FinishReason, UtilityCall, UtilityResult
from engined.scheduler.request import Request
from engined.scheduler.scheduler import Scheduler
from engined.trace.tracer import NO_TRACK, Track

logger = logging.getLogger(__name__)


class EngineCore:
    """Joins the scheduler (policy), the KV cache (bookkeeping) and the executor (the model).

    A step of a model that generates ends with `sample_tokens`, one of a pooling model with `execute_model`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: SequenceCache,
        executor: Executor,
        grammars: GrammarQueue,
        runner: Literal["generate", "pooling"],
        track: Track = NO_TRACK,
    ) -> None:
        self._samples = runner == "generate"
        self._scheduler = scheduler
        self._grammars = grammars
        self._cache = cache
        self._executor = executor
        self._track = track

    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self._scheduler.has_work()

    def step(self, while_running: Callable[[], None]) -> list[Send]:
        """Run one step; `while_running` is called while the model computes, to take in new commands.

        Aborts taken in there are applied before the result, so an aborted request never gets a token of this step.
        """
        faults.point("step")
        span = self._track.span
        with span("step"):
            with span("schedule"):
                plan = self._scheduler.schedule()
            with span("prepare"):
                forward = self._executor.execute_model(plan)
                sample = self._executor.sample_tokens(self._scheduler.grammar_masks(plan)) if self._samples else None
                self._scheduler.publish_output()
                while_running()
            with span("execute", {"step": plan.step_id, "tokens": plan.num_tokens}):
                result = forward.result()
            if sample is not None:
                with span("sample"):
                    result = sample.result()
            assert result is not None, "only a step that samples ends with the second call"
            with span("update"):
                while_running()
                outputs = self._scheduler.update_from_output(plan, result)
        return [Send(client_index, message) for client_index, message in outputs.items()]

    def handle(self, command: Command) -> list[Send]:
        """Apply one command; returns what must be sent at once."""
        match command:
            case AddRequest(request) if request.grammar is not None or request.reasoning is not None:
                self._grammars.add(request)
            case AddRequest(request):
                self._scheduler.add_request(request)
            case GrammarCompiled(request, matcher, cause):
                return self._add_constrained(request, matcher, cause)
            case AbortRequests(_, request_ids):
                self._scheduler.abort_requests(request_ids)
                aborted = self._grammars.abort_requests(request_ids)
                return [_end(request, Finished(reason=FinishReason.ABORT)) for request in aborted]
            case ClientGone(client_index):
                self._grammars.abort_client(client_index)
                self._scheduler.abort_client(client_index)
            case RefuseRequest(client_index, request_id, cause):
                finished = Finished(reason=FinishReason.ERROR, error=cause)
                return [Send(client_index, EngineCoreOutputs(finished={request_id: finished}))]
            case CallUtility(client_index, call):
                return [Send(client_index, self._call_utility(call))]
            case _:
                raise AssertionError(f"not for the engine core: {command}")
        return []

    def _add_constrained(self, request: Request, matcher: GrammarMatcher | None, cause: str) -> list[Send]:
        """Give a request whose grammar is compiled to the scheduler, or end it."""
        if not self._grammars.take(request):
            return []
        if matcher is None:
            return [_end(request, Finished(reason=FinishReason.ERROR, error=cause))]
        request.matcher = matcher
        self._scheduler.add_request(request)
        return []

    def last_sign_of_life(self, rest_began: float) -> float:
        """See Executor."""
        return self._executor.last_sign_of_life(rest_began)

    def release_memory(self) -> None:
        """Give back what the last batches needed and an idle engine does not."""
        self._executor.release_memory().result()

    def take_pending_outputs(self) -> list[Send]:
        """Terminal events that no step will carry, because nothing is left to run."""
        return [Send(index, message) for index, message in self._scheduler.take_pending_outputs().items()]

    def _call_utility(self, call: UtilityCall) -> UtilityResult:
        if call.kind == "reset_prefix_cache":
            self._cache.reset_prefix_cache()
            return UtilityResult(call_id=call.call_id)
        if call.kind == "list_waiting":
            return UtilityResult(call_id=call.call_id, waiting_request_ids=self._scheduler.waiting_request_ids())
        return UtilityResult(call_id=call.call_id, error=f"unknown utility {call.kind!r}")


def _end(request: Request, finished: Finished) -> Send:
    """The end of a request that the scheduler never had."""
    return Send(request.client_index, EngineCoreOutputs(finished={request.request_id: finished}))
