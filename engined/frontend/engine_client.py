"""The frontend's end of the link to one engine core. Frontend process; owned by `AsyncLLM`.

It turns messages into frames and frames into messages, and answers utility calls. It knows nothing of text.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from engined.errors import EngineDeadError, ProtocolError, RequestError
from engined.ipc.aio import AsyncFrameChannel
from engined.ipc.frame import Frame, MessageType
from engined.protocol import codec
from engined.protocol.engine import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFatal,
    EngineReady,
    UtilityCall,
    UtilityResult,
)
from engined.trace.tracer import NO_TRACK, Track

logger = logging.getLogger(__name__)

CONNECT_RETRY_SECONDS = 0.05
UTILITY_TIMEOUT_SECONDS = 30.0
LOADING = "the engine is loading the model"


class EngineClient:
    """The link to one core. `ready` holds what the core reported; while it is None, `unready_reason` says why."""

    def __init__(self, socket_path: str, track: Track = NO_TRACK) -> None:
        self._track = track
        self.ready: EngineReady | None = None
        self.unready_reason = LOADING
        self.is_proven = True
        """Whether the engine has shown that it works; False between READY and its first answer."""
        self._socket_path = socket_path
        self._channel: AsyncFrameChannel | None = None
        self._utility_results: dict[int, asyncio.Future[UtilityResult]] = {}
        self._num_utility_calls = 0

    async def connect(self) -> None:
        """Connect, trying until the socket exists, and wait for READY.

        Raises EngineDeadError if the core goes away while it loads.
        """
        channel = await self._connect_channel()
        self._channel = channel
        try:
            frame = await channel.receive()
            if frame is None:
                raise EngineDeadError("the engine ended while it was loading the model")
            if frame.type is MessageType.FATAL:
                raise EngineDeadError(codec.decode(frame.payload, EngineFatal).cause)
            if frame.type is not MessageType.READY:
                raise ProtocolError(f"the engine core began with {frame.type.name}, not READY")
            self.ready = codec.decode(frame.payload, EngineReady)
        except (EngineDeadError, ProtocolError) as error:
            self.close(str(error))
            raise EngineDeadError(str(error)) from error
        logger.info(
            "engine %d is ready: %d KV blocks of %d tokens, at most %d tokens a request, %s",
            self.ready.pid,
            self.ready.num_kv_blocks,
            self.ready.block_size,
            self.ready.max_model_len,
            self.ready.dtype,
        )

    @property
    def is_behind(self) -> bool:
        """Whether frames have come that nobody has taken yet."""
        return self._channel is not None and self._channel.num_queued > 0

    async def outputs(self) -> AsyncIterator[EngineCoreOutputs]:
        """The outputs of the core, a frame at a time, until it dies: then EngineDeadError with the cause."""
        assert self._channel is not None
        try:
            while (frame := await self._channel.receive()) is not None:
                if frame.type is MessageType.OUTPUTS:
                    with self._track.span("receive"):
                        outputs = codec.decode(frame.payload, EngineCoreOutputs)
                    yield outputs
                else:
                    self._handle_rare_frame(frame)
            raise EngineDeadError("the engine core closed its link without a reason")
        except (EngineDeadError, ProtocolError) as error:
            self.close(str(error))
            raise EngineDeadError(str(error)) from error

    async def add_request(self, request: EngineCoreRequest) -> None:
        """Send ADD. Waits while the core is slow to read. Raises EngineDeadError on a closed link."""
        channel = self._open_channel()
        channel.send(MessageType.ADD, codec.encode(request))
        await channel.drain()

    def abort_requests(self, request_ids: list[str]) -> None:
        """Send ABORT at once, without waiting, so that it also works in a handler that is being cancelled."""
        if request_ids and self._channel is not None:
            self._channel.send(MessageType.ABORT, codec.encode(AbortRequests(request_ids=request_ids)))

    async def call_utility(self, kind: str) -> UtilityResult:
        """Run a rare operation in the core and wait for its answer. Raises RequestError if it fails."""
        channel = self._open_channel()
        self._num_utility_calls += 1
        call = UtilityCall(call_id=self._num_utility_calls, kind=kind)
        future: asyncio.Future[UtilityResult] = asyncio.get_running_loop().create_future()
        self._utility_results[call.call_id] = future
        try:
            channel.send(MessageType.UTILITY, codec.encode(call))
            result = await asyncio.wait_for(future, UTILITY_TIMEOUT_SECONDS)
        except TimeoutError:
            raise RequestError(f"{kind}: the engine did not answer in time", status=503, type="server_error") from None
        finally:
            self._utility_results.pop(call.call_id, None)
        if result.error is not None:
            raise RequestError(f"{kind}: {result.error}", status=500, type="server_error")
        return result

    def close(self, reason: str) -> None:
        """Drop the link; utility calls that wait for an answer fail with `reason`."""
        self.ready = None
        self.unready_reason = reason
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for future in self._utility_results.values():
            if not future.done():
                future.set_exception(EngineDeadError(reason))

    def _handle_rare_frame(self, frame: Frame) -> None:
        if frame.type is MessageType.UTILITY:
            result = codec.decode(frame.payload, UtilityResult)
            future = self._utility_results.get(result.call_id)
            if future is not None and not future.done():
                future.set_result(result)
        elif frame.type is MessageType.FATAL:
            raise EngineDeadError(codec.decode(frame.payload, EngineFatal).cause)
        else:
            raise ProtocolError(f"the engine core sent {frame.type.name}, which only a frontend may send")

    def _open_channel(self) -> AsyncFrameChannel:
        if self._channel is None or self.ready is None:
            raise EngineDeadError(self.unready_reason)
        return self._channel

    async def _connect_channel(self) -> AsyncFrameChannel:
        started = time.monotonic()
        has_warned = False
        while True:
            try:
                return await AsyncFrameChannel.connect(self._socket_path)
            except (FileNotFoundError, ConnectionRefusedError):
                if not has_warned and time.monotonic() - started > 10:
                    logger.warning("the engine's socket %s does not exist yet", self._socket_path)
                    has_warned = True
                await asyncio.sleep(CONNECT_RETRY_SECONDS)
