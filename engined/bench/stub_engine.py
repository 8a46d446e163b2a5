"""An engine core that computes nothing: it speaks the real frames over a real socket, and streams what it was given.

Runs in the process of `engined bench stream`, in front of a real frontend.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engined import __version__
from engined.ipc.decoder import FrameDecoder
from engined.ipc.frame import Frame, MessageType, encode_frame
from engined.protocol import codec
from engined.protocol.engine import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineReady,
    Finished,
    FinishReason,
    SchedulerStats,
    Started,
)

_RECEIVE_SIZE = 1 << 18
_CANARY = "canary-"
"""Ids of the requests with which a frontend tries an engine begin so."""


class StubEngine:
    """Gives all requests one token a step, once `wait_for_requests` has seen as many as expected."""

    def __init__(self, path: Path, token_ids: Sequence[int], max_model_len: int, step_seconds: float) -> None:
        """`token_ids` are streamed over and over; `step_seconds` is the least time between two steps."""
        self.path = path
        self._token_ids = token_ids
        self._max_model_len = max_model_len
        self._step_seconds = step_seconds
        self._running: dict[str, int] = {}
        """Tokens that each request still gets."""
        self._has_news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connection: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> "StubEngine":
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        if self._writer is not None and self._connection is not None:
            self._writer.close()
            await asyncio.wait([self._connection])

    async def wait_for_requests(self, count: int) -> None:
        """Wait until so many are there."""
        while len(self._running) < count:
            self._has_news.clear()
            await self._has_news.wait()

    async def stream(self) -> None:
        """Step until all requests that are there have ended."""
        position = 0
        next_step = time.monotonic()
        while self._running:
            token_id = self._token_ids[position % len(self._token_ids)]
            position += 1
            request_ids = list(self._running)
            for request_id in request_ids:
                self._running[request_id] -= 1
            finished = [request_id for request_id in request_ids if self._running[request_id] == 0]
            for request_id in finished:
                del self._running[request_id]
            self._send_outputs(
                request_ids=request_ids,
                new_token_ids=[[token_id] for _ in request_ids],
                finished={request_id: Finished(reason=FinishReason.LENGTH) for request_id in finished},
            )
            assert self._writer is not None
            await self._writer.drain()
            next_step = max(next_step + self._step_seconds, time.monotonic())
            await asyncio.sleep(next_step - time.monotonic())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._connection = asyncio.current_task()
        ready = EngineReady(
            version=__version__,
            pid=1,
            dtype="none",
            kv_cache_dtype="none",
            num_kv_blocks=1 << 20,
            block_size=16,
            max_model_len=self._max_model_len,
        )
        writer.write(encode_frame(MessageType.READY, codec.encode(ready)))
        decoder = FrameDecoder()
        while data := await reader.read(_RECEIVE_SIZE):
            for frame in decoder.feed(data):
                self._handle(frame)

    def _handle(self, frame: Frame) -> None:
        if frame.type is MessageType.ADD:
            request = codec.decode(frame.payload, EngineCoreRequest)
            if request.request_id.startswith(_CANARY):
                self._send_end(request.request_id, FinishReason.LENGTH)
                return
            self._running[request.request_id] = request.sampling.max_tokens
            started = Started(scheduled_time=time.monotonic(), num_cached_tokens=0)
            self._send_outputs(started={request.request_id: started})
            self._has_news.set()
        elif frame.type is MessageType.ABORT:
            for request_id in codec.decode(frame.payload, AbortRequests).request_ids:
                if self._running.pop(request_id, None) is not None:
                    self._send_end(request_id, FinishReason.ABORT)

    def _send_end(self, request_id: str, reason: FinishReason) -> None:
        self._send_outputs(finished={request_id: Finished(reason=reason)})

    def _send_outputs(self, **fields: Any) -> None:
        """OUTPUTS with these fields, and what every frame has."""
        stats = SchedulerStats(
            num_running=len(self._running),
            num_waiting=0,
            kv_cache_usage=0.0,
            num_preemptions=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
        )
        outputs = EngineCoreOutputs(**fields, stats=stats, timestamp=time.monotonic())
        assert self._writer is not None
        self._writer.write(encode_frame(MessageType.OUTPUTS, codec.encode(outputs)))
