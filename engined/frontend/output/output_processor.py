"""Distributes the outputs of the engine to the requests that wait for them. Frontend process; owned by `AsyncLLM`.

A request is registered here before it is sent, so that no output can find nobody home; outputs of unknown ids (aborted
in the meantime, or stopped by a stop string) are skipped.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import chain

from tokenizers import Tokenizer

from engined import faults
from engined.errors import RequestError
from engined.frontend.admission.backlog import Backlog, expected_tokens
from engined.frontend.metrics import EMPTY_STATS, Metrics
from engined.frontend.output.collector import RequestOutputCollector
from engined.frontend.output.request_state import OutputOptions, RequestState
from engined.protocol.engine import EngineCoreOutputs, EngineCoreRequest, Finished, FinishReason, Started

logger = logging.getLogger(__name__)

OUTPUTS_PER_CHUNK = 128
"""Requests handled before the event loop gets its turn, so that frames cannot stall the HTTP side."""


class OutputProcessor:
    """The states of all running sequences. Every sequence leaves by exactly one of `_end`'s callers."""

    def __init__(self, backend: Tokenizer, metrics: Metrics) -> None:
        self._backend = backend
        self._metrics = metrics
        self._states: dict[str, RequestState] = {}
        self._to_wake: dict[RequestOutputCollector, None] = {}
        """What was put since the last delivery, in order."""
        self._num_since_pause = 0
        self.backlog = Backlog()
        """Those that have not begun."""

    @property
    def num_running(self) -> int:
        """Sequences that have not ended."""
        return len(self._states)

    def add_request(
        self, request: EngineCoreRequest, index: int, options: OutputOptions, collector: RequestOutputCollector
    ) -> RequestState:
        """Register one sequence; `index` is its number among the choices of its HTTP request."""
        assert request.request_id not in self._states
        state = RequestState(request, index, options, self._backend, collector)
        self._states[request.request_id] = state
        if not request.is_background:
            state.num_waiting_tokens = expected_tokens(request)
            self.backlog.add(collector, state.num_waiting_tokens)
        return state

    async def process_outputs(self, outputs: EngineCoreOutputs) -> list[str]:
        """Take one frame; the ids that a stop string ended, which the engine must abort.

        Consumers are not woken before `deliver`: what several frames bring for one of them is merged until then.
        """
        if outputs.stats is not None:
            self._metrics.update_scheduler_stats(outputs.stats)
        states, now = self._states, time.monotonic()
        to_abort: list[str] = []
        others: dict[str, list[int]] = {}
        for request_id in chain(outputs.started, outputs.prompt_logprobs, outputs.finished):
            others[request_id] = []
        for request_id, token_ids in zip(outputs.request_ids, outputs.new_token_ids, strict=True):
            state = states.get(request_id)
            if state is None or not state.is_plain or request_id in others:
                others[request_id] = token_ids
            elif self._take_text(state, token_ids, now):
                to_abort.append(request_id)
            if self._is_pause_due():
                await asyncio.sleep(0)
        for request_id, token_ids in others.items():
            state = states.get(request_id)
            if state is not None and self._try_update(state, token_ids, outputs, now):
                to_abort.append(request_id)
            if self._is_pause_due():
                await asyncio.sleep(0)
        return to_abort

    def deliver(self) -> None:
        """Wake the consumers of what was processed since the last time."""
        for collector in self._to_wake:
            collector.wake()
        self._to_wake.clear()

    def note_request_over(self, sequences: Sequence[RequestState]) -> None:
        """All sequences of one request, of which none runs any more, for the metrics."""
        longest = max((sequence.num_generated_tokens for sequence in sequences), default=0)
        if longest:
            self._metrics.observe_request(longest)

    def running_ids(self) -> list[str]:
        """All sequences that have not ended."""
        return list(self._states)

    def running(self, request_ids: list[str]) -> list[str]:
        """Those of the ids that have not ended."""
        return [request_id for request_id in request_ids if request_id in self._states]

    def forget(self, request_ids: list[str]) -> None:
        """Drop sequences whose consumer has gone. The ABORT must have been sent before."""
        for request_id in request_ids:
            state = self._states.get(request_id)
            if state is not None:
                self._end(state, FinishReason.ABORT.value)

    def end(self, request_ids: list[str], stop_reason: str) -> None:
        """End sequences with what they have, as aborted for `stop_reason`. The ABORT must have been sent before."""
        for request_id in request_ids:
            state = self._states[request_id]
            state.collector.put(state.end(stop_reason))
            self._end(state, FinishReason.ABORT.value)

    def fail_all(self, error: Exception) -> None:
        """End every sequence with `error`: the engine is gone, or the server stops."""
        for state in list(self._states.values()):
            state.collector.put_error(error)
            self._end(state, FinishReason.ERROR.value)
        self._metrics.update_scheduler_stats(EMPTY_STATS)

    def _take_text(self, state: RequestState, token_ids: list[int], now: float) -> bool:
        """The short way: tokens of a plain sequence that goes on, and nothing else. Whether it must be aborted."""
        try:
            faults.point("request.output")
            collector = state.collector
            collector.add_text(state.index, state.take_text(token_ids), token_ids)
            self._to_wake[collector] = None
            self._observe_tokens(state, len(token_ids), now)
            return collector.is_overfull and self._give_up(state)
        except Exception as error:  # the boundary of this request: its neighbours are in the same frame
            return self._fail_internally(state, error)

    def _is_pause_due(self) -> bool:
        """Whether the event loop must get its turn now; asked after each request."""
        self._num_since_pause = (self._num_since_pause + 1) % OUTPUTS_PER_CHUNK
        return self._num_since_pause == 0

    def _try_update(self, state: RequestState, token_ids: list[int], outputs: EngineCoreOutputs, now: float) -> bool:
        """As `_update`; a sequence whose outputs cannot be taken in ends alone."""
        try:
            return self._update(state, token_ids, outputs, now)
        except Exception as error:  # the boundary of this request: its neighbours are in the same frame
            return self._fail_internally(state, error)

    def _fail_internally(self, state: RequestState, error: Exception) -> bool:
        """End a sequence whose output cannot be taken in."""
        logger.exception("sequence %s: its output cannot be taken in", state.request_id)
        if state.request_id in self._states:
            self._fail(state, Finished(reason=FinishReason.ERROR, error=f"internal error: {error}"))
        return True

    def _update(self, state: RequestState, token_ids: list[int], outputs: EngineCoreOutputs, now: float) -> bool:
        """Apply one frame to one sequence; whether the engine must be told to abort it."""
        faults.point("request.output")
        request_id = state.request_id
        if (started := outputs.started.get(request_id)) is not None:
            self._note_started(state, started)
        if (prompt_logprobs := outputs.prompt_logprobs.get(request_id)) is not None:
            state.note_prompt_logprobs(prompt_logprobs)
        if (pooled := outputs.pooled.get(request_id)) is not None:
            state.note_pooled(pooled)
        finished = outputs.finished.get(request_id)
        if finished is not None and finished.reason is FinishReason.ERROR:
            self._fail(state, finished)
            return False
        if not token_ids and finished is None:
            return False
        num_before = state.num_generated_tokens
        output = state.update(token_ids, outputs.logprobs.get(request_id, []), finished)
        if state.num_generated_tokens > num_before:
            self._observe_tokens(state, state.num_generated_tokens - num_before, now)
        if output is not None:
            state.collector.add(output)
            self._to_wake[state.collector] = None
        if state.finish_reason is None:
            return state.collector.is_overfull and self._give_up(state)
        self._end(state, state.finish_reason)
        return finished is None

    def _note_started(self, state: RequestState, started: Started) -> None:
        if state.times.scheduled is None:
            queue_seconds = started.scheduled_time - state.times.arrival
            self._metrics.observe_started(queue_seconds, state.num_prompt_tokens, started.num_cached_tokens)
        state.note_started(started)
        self._leave_backlog(state)

    def _observe_tokens(self, state: RequestState, num_new_tokens: int, now: float) -> None:
        self._metrics.num_generation_tokens += num_new_tokens
        times = state.times
        if times.last_token is None:
            times.first_token = now
            self._metrics.time_to_first_token.observe(now - times.arrival)
        else:
            gap = (now - times.last_token) / num_new_tokens
            self._metrics.inter_token_latency.observe(gap, num_new_tokens)
        times.last_token = now

    def _fail(self, state: RequestState, finished: Finished) -> None:
        message = finished.error or "the engine could not generate this sequence"
        state.collector.put_error(RequestError(message, status=500, type="server_error", code="generation_failed"))
        self._end(state, FinishReason.ERROR.value)

    def _give_up(self, state: RequestState) -> bool:
        """End a sequence whose client does not take what it asked for."""
        text = "the client did not read its answer, of which too much was waiting"
        state.collector.put_error(RequestError(text, status=408, code="client_too_slow"))
        self._end(state, FinishReason.ABORT.value)
        return True

    def _leave_backlog(self, state: RequestState) -> None:
        if state.num_waiting_tokens is not None:
            self.backlog.remove(state.collector, state.num_waiting_tokens)
            state.num_waiting_tokens = None

    def _end(self, state: RequestState, finish_reason: str) -> None:
        del self._states[state.request_id]
        self._leave_backlog(state)
        times = state.times
        self._metrics.observe_finished(
            finish_reason,
            time.monotonic() - times.arrival,
            state.num_prompt_tokens,
            state.num_generated_tokens,
        )
        if times.scheduled is not None and times.first_token is not None and times.last_token is not None:
            self._metrics.observe_generated(
                times.first_token - times.scheduled, times.last_token - times.first_token, state.num_generated_tokens
            )
