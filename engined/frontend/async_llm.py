"""The engine as the HTTP side sees it: requests in, deltas out. Frontend process; the serving layer calls `generate`.

It owns the link (`EngineClient`), the states of running requests (`OutputProcessor`) and the single output task that
connects the two.
"""

import asyncio
import copy
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from engined import faults
from engined.errors import EngineDeadError, RequestError
from engined.frontend.admission.backlog import Backlog
from engined.frontend.engine_client import EngineClient
from engined.frontend.live_requests import LiveRequest, LiveRequests, RequestInfo
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.output.collector import RequestOutputCollector
from engined.frontend.output.output_processor import OutputProcessor
from engined.frontend.output.request_state import OutputOptions
from engined.process.board import DaemonState, serving_state
from engined.protocol.engine import EngineCoreRequest, EngineReady, FinishReason
from engined.trace.tracer import NO_TRACER, Tracer

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.5
MAX_MERGE_SECONDS = 0.05
"""While frames come faster than they are handled, consumers are woken so rarely: what several steps bring for a stream
leaves in one event, which costs little more than that of one step."""
PROVING = "the engine is loaded and answers its first request"


class AsyncLLM:
    """One engine core. `ready` is None until it can serve; `unready_reason` then says why not."""

    def __init__(
        self,
        client: EngineClient,
        output_processor: OutputProcessor,
        canary: EngineCoreRequest,
        read_state: Callable[[], DaemonState] = serving_state,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`canary` is the first request that each engine gets; `read_state` tells how the daemon is doing."""
        self.tracer = tracer
        self._track = tracer.track("engine outputs")
        self._client = client
        self._output_processor = output_processor
        self._canary = canary
        self._read_state = read_state
        self._is_background = False
        self.live_requests = LiveRequests()

    def in_background(self) -> "AsyncLLM":
        """The same engine, for requests that run on what the others leave over. Only the original is `run`."""
        twin = copy.copy(self)
        twin._is_background = True
        return twin

    @property
    def ready(self) -> EngineReady | None:
        """What the core reported, while it lives and is known to work."""
        return self._client.ready if self._client.is_proven else None

    @property
    def unready_reason(self) -> str:
        """Why there is no engine: a sentence for the user, with what the supervisor knows."""
        state = self._read_state()
        is_waiting = state.phase in ("starting", "recovering") and state.text
        return f"{self._client.unready_reason}; {state.text}" if is_waiting else self._client.unready_reason

    @property
    def backlog(self) -> Backlog:
        """What was sent to the engine and has not begun there."""
        return self._output_processor.backlog

    @property
    def num_running(self) -> int:
        """Sequences that have not ended."""
        return self._output_processor.num_running

    def require_ready(self) -> EngineReady:
        """What the core reported. Raises RequestError 503 if it is not there."""
        ready = self.ready
        if ready is None:
            raise RequestError(
                self.unready_reason,
                status=503,
                type="server_error",
                code="engine_unavailable",
                retry_after=self._read_state().retry_after,
            )
        return ready

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """The output task: connect, hand out outputs, and when the engine dies fail what is open and connect again.

        `on_ready` is called when an engine has answered its canary, before which nobody else is let in.
        """
        while True:
            try:
                await self.connect()
                self._client.is_proven = False
                await self._prove(on_ready)
                await self.run_connected()
            except EngineDeadError as error:
                logger.error("the engine is gone: %s", error)
                self.fail_all(
                    RequestError(f"the engine died: {error}", status=500, type="server_error", code="engine_dead")
                )
            await asyncio.sleep(RECONNECT_SECONDS)

    async def connect(self) -> None:
        """Wait until the engine's socket is there and the engine is ready. Raises EngineDeadError if it dies first."""
        await self._client.connect()

    async def _prove(self, on_ready: Callable[[], None]) -> None:
        """Send the canary and wait for it. Raises EngineDeadError if the engine dies over it."""
        self._client.unready_reason = PROVING
        started = time.monotonic()
        await self._client.add_request(self._canary)
        async for outputs in self._client.outputs():
            finished = outputs.finished.get(self._canary.request_id)
            if finished is None:
                continue
            if finished.reason is FinishReason.ERROR:
                self._client.unready_reason = f"the engine failed at its first token: {finished.error}"
                logger.error("%s", self._client.unready_reason)
                continue
            self._client.is_proven = True
            logger.info("the engine answered its first request in %.2f s", time.monotonic() - started)
            on_ready()
            return

    async def run_connected(self) -> None:
        """Hand out outputs until the engine dies, which raises EngineDeadError; what is open stays open."""
        last_delivery = time.monotonic()
        try:
            async for outputs in self._client.outputs():
                faults.point("task.outputs")
                with self._track.span("detokenize"):
                    self._client.abort_requests(await self._output_processor.process_outputs(outputs))
                is_behind = self._client.is_behind
                now = time.monotonic()
                if is_behind and now - last_delivery < MAX_MERGE_SECONDS:
                    continue
                self._output_processor.deliver()
                last_delivery = now
                if is_behind:
                    await asyncio.sleep(0)  # the next frame is taken without waiting, and consumers want their turn
        finally:
            self._output_processor.deliver()

    @asynccontextmanager
    async def generate(
        self, requests: Sequence[EngineCoreRequest], options: OutputOptions, info: RequestInfo
    ) -> AsyncIterator[RequestOutputCollector]:
        """Run the sequences of one HTTP request; their outputs come out of the collector.

        `requests[i]` is choice i; each comes in one piece unless `info` says that they are streamed. Leaving the block
        early, by an error or a cancelled handler, aborts what still runs.
        """
        if self._is_background:
            requests = [dataclasses.replace(request, is_background=True) for request in requests]
        collector = RequestOutputCollector(len(requests), final_only=not info.is_stream)
        live = LiveRequest(info, collector, is_background=self._is_background)
        self.live_requests.add(live)
        try:
            for index, request in enumerate(requests):
                live.sequences.append(self._output_processor.add_request(request, index, options, collector))
            for request in requests:
                await self._client.add_request(request)
            yield collector
        finally:
            self.live_requests.remove(live)
            self._abort(live)
            self._output_processor.note_request_over(live.sequences)

    def _abort(self, live: LiveRequest) -> None:
        # Abort first, forget second: the other way round, a failure in between would leave a ghost in the engine.
        running = self._output_processor.running([sequence.request_id for sequence in live.sequences])
        self._client.abort_requests(running)
        self._output_processor.forget(running)

    def cancel(self, live: LiveRequest) -> None:
        """End one request from outside, with an error for its client: an answer that was cut off must not look whole.

        Raises RequestError 409 if nothing is left to end: all is generated, and on its way to the client.
        """
        if live.collector.is_finished:
            raise RequestError(
                "the request is over: its last tokens are on their way to the client", status=409, code="request_ended"
            )
        live.collector.put_error(RequestError("an operator ended this request", status=410, code="request_cancelled"))
        self._abort(live)

    def end_requests(self, requests: Sequence[EngineCoreRequest], stop_reason: str) -> None:
        """End what still runs of `requests`: their consumer gets what there is, with finish_reason "abort"."""
        running = self._output_processor.running([request.request_id for request in requests])
        self._client.abort_requests(running)
        self._output_processor.end(running, stop_reason)

    async def pool(self, requests: Sequence[EngineCoreRequest], info: RequestInfo) -> list[list[float]]:
        """Pool the sequences of one HTTP request: the embedding, or the scores, of each, in their order.

        Being cancelled aborts what still runs. Raises RequestError if a sequence failed.
        """
        async with self.generate(requests, OutputOptions(), info) as collector:
            return await take_pooled(collector)

    def fail_all(self, error: Exception) -> None:
        """End every open request with `error`."""
        self._output_processor.fail_all(error)

    def abort_all(self, error: Exception) -> None:
        """Abort every open request in the engine, and end it with `error`."""
        self._client.abort_requests(self._output_processor.running_ids())
        self.fail_all(error)

    async def reset_prefix_cache(self) -> None:
        """Forget all cached blocks that no request holds."""
        self.require_ready()
        await self._client.call_utility("reset_prefix_cache")

    async def waiting_request_ids(self) -> list[str]:
        """The engine's queue, the next sequence first. Raises RequestError, or EngineDeadError if it dies over it."""
        self.require_ready()
        return (await self._client.call_utility("list_waiting")).waiting_request_ids


async def take_pooled(collector: RequestOutputCollector) -> list[list[float]]:
    """The results of all sequences of a request that is pooled, in their order. Raises RequestError if one failed."""
    outputs: list[ChoiceOutput] = []
    while not collector.is_finished:
        outputs += await collector.get()
    outputs.sort(key=lambda output: output.index)
    return [_pooled(output) for output in outputs]


def _pooled(output: ChoiceOutput) -> list[float]:
    if output.pooled is None:  # it was aborted in the engine, not by us
        raise RequestError("the engine gave no result", status=500, type="server_error", code="pooling_failed")
    return output.pooled
