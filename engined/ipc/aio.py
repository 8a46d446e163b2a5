"""The asyncio end of a frame link: used by the frontend, one channel for each engine core.

Whole frames come out of `receive`, however the bytes arrived. Both directions push back: a slow peer blocks `drain`, a
slow receiver stops the reading of the socket.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from engined import faults
from engined.errors import ProtocolError
from engined.ipc.decoder import FrameDecoder
from engined.ipc.frame import Buffer, Frame, MessageType, encode_frame

MAX_QUEUED_BYTES = 8 << 20
"""Received frames that nobody has taken yet; above it the socket is no longer read."""
MAX_UNSENT_BYTES = 1 << 20
"""Bytes that wait for a slow peer; above it `drain` blocks."""


class AsyncFrameChannel(asyncio.Protocol):
    """One connection, both directions. One task receives; any number of tasks send."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self._queued_bytes = 0
        self._error: ProtocolError | None = None
        self._is_closed = False
        self._is_reading_paused = False
        self._received = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, path: str) -> "AsyncFrameChannel":
        """Connect to the Unix socket at `path`. Raises OSError as connect(2) does."""
        _, channel = await asyncio.get_running_loop().create_unix_connection(cls, path)
        return channel

    @property
    def is_closed(self) -> bool:
        """Whether the link is down; what is sent then is dropped."""
        return self._is_closed

    @property
    def num_queued(self) -> int:
        """Frames that `receive` would return at once."""
        return len(self._frames)

    def send(self, type: MessageType, payload: bytes, blobs: Sequence[Buffer] = ()) -> None:
        """Queue one frame and return at once. Raises ProtocolError if it exceeds the limits."""
        frame = encode_frame(type, payload, blobs)
        if self._transport is None or self._is_closed:
            return
        if faults.strikes("ipc.send.partial"):
            self._transport.write(frame[: len(frame) // 2])
            self._transport.write_eof()
            return
        self._transport.write(frame)

    async def drain(self) -> None:
        """Wait until the peer has taken enough of what was sent. Returns at once on a closed link."""
        await self._writable.wait()

    async def receive(self) -> Frame | None:
        """The next frame; None at the end of the stream. Raises ProtocolError once the peer broke the protocol."""
        while not self._frames:
            if self._error is not None:
                raise self._error
            if self._is_closed:
                return None
            self._received.clear()
            await self._received.wait()
        frame = self._frames.popleft()
        self._queued_bytes -= _size(frame)
        if self._is_reading_paused and self._queued_bytes < MAX_QUEUED_BYTES // 2:
            self._pause_reading(False)
        return frame

    def close(self) -> None:
        """Close the link, dropping what is still unsent."""
        if self._transport is not None:
            self._transport.abort()
        self._mark_closed()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: the end of the stream, or a broken link."""
        self._mark_closed()

    def pause_writing(self) -> None:
        """Called by asyncio when too much is unsent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by asyncio when the peer has caught up."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with what the socket had."""
        faults.point("ipc.recv")
        try:
            frames = self._decoder.feed(data)
        except ProtocolError as error:
            self._error = error
            self.close()
            return
        if not frames:
            return
        self._frames.extend(frames)
        self._queued_bytes += sum(map(_size, frames))
        self._received.set()
        if self._queued_bytes >= MAX_QUEUED_BYTES and not self._is_reading_paused:
            self._pause_reading(True)

    def _pause_reading(self, is_paused: bool) -> None:
        self._is_reading_paused = is_paused
        if self._transport is None or self._is_closed:
            return
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _mark_closed(self) -> None:
        self._is_closed = True
        self._writable.set()
        self._received.set()


def _size(frame: Frame) -> int:
    return len(frame.payload) + sum(map(len, frame.blobs))
