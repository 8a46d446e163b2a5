"""A scripted engine core for tests of the frontend: it speaks the real frames over a real Unix socket, and "generates"
whatever tokens the test says. Only the engine process is replaced; everything else is the real thing."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from engined.ipc.frame import HEADER_SIZE, Frame, MessageType, decode_body, decode_header, encode_frame
from engined.protocol import codec
from engined.protocol.engine import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFatal,
    EngineReady,
    Finished,
    FinishReason,
    SchedulerStats,
    Started,
    TokenLogprobs,
    UtilityCall,
    UtilityResult,
)

Script = Callable[[EngineCoreRequest], list[int]]


class ScriptedEngine:
    """Answers ADD with `script(request)`, `tokens_per_step` tokens at a time, and records what it is told."""

    def __init__(self, path: Path, script: Script, eos_token_id: int, max_model_len: int = 512) -> None:
        self.path = str(path)
        self.script = script
        self.eos_token_id = eos_token_id
        self.max_model_len = max_model_len
        self.tokens_per_step = 1
        self.step_delay = 0.0
        self.stall_after: int | None = None
        self.stalls: Callable[[EngineCoreRequest], bool] = lambda request: True
        self.utility_error: str | None = None
        self.answers_utilities = True
        self.holds: Callable[[EngineCoreRequest], bool] = lambda request: False
        self.waiting: list[str] = []
        """Requests that are held back, as in the queue of an engine without a free seat."""
        self.error: str | None = None
        self.added: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.running: dict[str, asyncio.Task[None]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self._connected = asyncio.Event()

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def send_ready(self) -> None:
        await self._connected.wait()
        ready = EngineReady(
            version="test",
            pid=1,
            dtype="float32",
            kv_cache_dtype="float32",
            num_kv_blocks=64,
            block_size=16,
            max_model_len=self.max_model_len,
        )
        self.send(MessageType.READY, ready)

    def send(self, type: MessageType, message: object) -> None:
        assert self._writer is not None
        self._writer.write(encode_frame(type, codec.encode(message)))

    def die(self, cause: str | None = None) -> None:
        """Close the link, with a FATAL frame or without a word."""
        assert self._writer is not None
        if cause is not None:
            self.send(MessageType.FATAL, EngineFatal(cause=cause))
        self._stop_tasks()
        self._connected.clear()
        self._writer.close()

    async def close(self) -> None:
        self._stop_tasks()
        if self._writer is not None:
            self._writer.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def wait_for_abort(self, count: int = 1) -> None:
        async with asyncio.timeout(5):
            while len(self.aborted) < count:
                await asyncio.sleep(0.01)

    def _stop_tasks(self) -> None:
        for task in self.running.values():
            task.cancel()
        self.running.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._connected.set()
        try:
            while True:
                header = decode_header(await reader.readexactly(HEADER_SIZE))
                body = await reader.readexactly(header.body_size)
                self._handle(decode_body(header, memoryview(body)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    def _handle(self, frame: Frame) -> None:
        if frame.type is MessageType.ADD:
            request = codec.decode(frame.payload, EngineCoreRequest)
            if request.request_id.startswith("canary-"):
                self._send_finish(request.request_id, Finished(reason=FinishReason.LENGTH))
                return
            self.added.append(request)
            if self.holds(request):
                self.waiting.append(request.request_id)
                return
            self.running[request.request_id] = asyncio.create_task(self._generate(request))
        elif frame.type is MessageType.ABORT:
            for request_id in codec.decode(frame.payload, AbortRequests).request_ids:
                self.aborted.append(request_id)
                task = self.running.pop(request_id, None)
                if request_id in self.waiting:
                    self.waiting.remove(request_id)
                    self._send_finish(request_id, Finished(reason=FinishReason.ABORT))
                if task is not None:
                    task.cancel()
                    self._send_finish(request_id, Finished(reason=FinishReason.ABORT))
        elif frame.type is MessageType.UTILITY and self.answers_utilities:
            call = codec.decode(frame.payload, UtilityCall)
            waiting = self.waiting if call.kind == "list_waiting" else []
            result = UtilityResult(call_id=call.call_id, error=self.utility_error, waiting_request_ids=waiting)
            self.send(MessageType.UTILITY, result)

    def _stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=0,
            kv_cache_usage=0.25,
            num_preemptions=1,
            prefix_cache_queries=10,
            prefix_cache_hits=4,
        )

    def _send_finish(self, request_id: str, finished: Finished) -> None:
        self.send(MessageType.OUTPUTS, EngineCoreOutputs(finished={request_id: finished}, stats=self._stats()))

    async def _generate(self, request: EngineCoreRequest) -> None:
        request_id = request.request_id
        tokens = self.script(request)
        sampling = request.sampling
        limit = min(sampling.max_tokens, len(tokens))
        started = Started(scheduled_time=request.arrival_time + 0.001, num_cached_tokens=3)
        outputs = EngineCoreOutputs(started={request_id: started})
        if sampling.prompt_logprobs is not None and not (self.stall_after == 0 and self.stalls(request)):
            outputs.prompt_logprobs[request_id] = [
                self.logprobs_of(token_id, sampling.prompt_logprobs) for token_id in request.prompt_token_ids[1:]
            ]
        self.send(MessageType.OUTPUTS, outputs)
        if self.error is not None:
            self.running.pop(request_id, None)
            self._send_finish(request_id, Finished(reason=FinishReason.ERROR, error=self.error))
            return
        position = 0
        while position < limit:
            if self.stall_after is not None and position >= self.stall_after and self.stalls(request):
                await asyncio.Event().wait()
            step = tokens[position : min(position + self.tokens_per_step, limit)]
            position += len(step)
            finished = {request_id: self._ending(step, request)} if position >= limit else {}
            logprobs = {}
            if sampling.logprobs is not None:
                logprobs[request_id] = [self.logprobs_of(token_id, sampling.logprobs) for token_id in step]
            if finished:
                self.running.pop(request_id, None)
            self.send(
                MessageType.OUTPUTS,
                EngineCoreOutputs(
                    request_ids=[request_id],
                    new_token_ids=[step],
                    logprobs=logprobs,
                    finished=finished,
                    stats=self._stats(),
                ),
            )
            await asyncio.sleep(self.step_delay)
        if limit == 0:
            self.running.pop(request_id, None)
            self._send_finish(request_id, Finished(reason=FinishReason.LENGTH))

    def _ending(self, step: list[int], request: EngineCoreRequest) -> Finished:
        if step[-1] in request.sampling.stop_token_ids:
            return Finished(reason=FinishReason.STOP, stop_token_id=step[-1])
        is_eos = step[-1] == self.eos_token_id and not request.sampling.ignore_eos
        return Finished(reason=FinishReason.STOP if is_eos else FinishReason.LENGTH)

    @staticmethod
    def logprobs_of(token_id: int, num_alternatives: int) -> TokenLogprobs:
        """The token is third best; the alternatives are ids 100, 101, ..."""
        alternatives = [100 + rank for rank in range(num_alternatives)]
        return TokenLogprobs(
            token_ids=[token_id, *alternatives],
            logprobs=[-2.5, *(-1.0 - rank for rank in range(num_alternatives))],
            rank=3,
        )
