"""A blocking frame channel over a Unix stream socket: the IO threads of the core, and both ends of a worker link."""

import select
import socket
from collections import deque
from collections.abc import Sequence

from engined import faults
from engined.errors import ProtocolError
from engined.ipc.decoder import FrameDecoder
from engined.ipc.frame import Buffer, Frame, MessageType, encode_frame

_RECEIVE_SIZE = 1 << 18


class BlockingChannel:
    """Sends and receives whole frames. One thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self._buffer = memoryview(bytearray(_RECEIVE_SIZE))

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, type: MessageType, payload: bytes, blobs: Sequence[Buffer] = ()) -> None:
        """Send one frame, blocking until the kernel has it. Raises OSError if the peer is gone."""
        frame = encode_frame(type, payload, blobs)
        if faults.strikes("ipc.send.partial"):
            self._socket.sendall(frame[: len(frame) // 2])
            self.shutdown()
            return
        self._socket.sendall(frame)

    def receive(self) -> Frame | None:
        """The next frame; None when the peer closed the link between two frames.

        Raises ProtocolError on a bad frame or one that was cut, OSError if the link broke.
        """
        while not self._frames:
            if not self._receive_some():
                return None
        return self._frames.popleft()

    def wait(self, seconds: float) -> bool:
        """Whether `receive` has something to work on, frame or end, before so much time has passed."""
        if self._frames:
            return True
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def receive_available(self) -> list[Frame] | None:
        """After `fileno` became readable: the frames that are now complete, maybe none; None at the end."""
        if not self._receive_some():
            return None
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def _receive_some(self) -> bool:
        faults.point("ipc.recv")
        size = self._socket.recv_into(self._buffer)
        if size == 0:
            if self._decoder.is_mid_frame:
                raise ProtocolError("the link ended inside a frame")
            return False
        self._frames.extend(self._decoder.feed(self._buffer[:size]))
        return True

    def shutdown(self) -> None:
        """Wake whoever waits in `receive` or `send`, in any thread: the link has ended."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the peer was faster

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
