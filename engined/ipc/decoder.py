"""Cuts a byte stream into frames, however it arrives. Both channels use it; it does no IO."""

from engined.ipc.frame import HEADER_SIZE, Frame, FrameHeader, decode_body, decode_header


class FrameDecoder:
    """Holds the bytes of at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header: FrameHeader | None = None

    @property
    def is_mid_frame(self) -> bool:
        """Whether the stream would be cut inside a frame if it ended now."""
        return bool(self._buffer) or self._header is not None

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Take the next bytes; returns the frames that they complete.

        Raises ProtocolError as soon as a header breaks the protocol; the decoder is unusable afterwards.
        """
        self._buffer += data
        frames: list[Frame] = []
        offset = 0
        while True:
            if self._header is None:
                if len(self._buffer) - offset < HEADER_SIZE:
                    break
                self._header = decode_header(memoryview(self._buffer)[offset : offset + HEADER_SIZE])
                offset += HEADER_SIZE
            size = self._header.body_size
            if len(self._buffer) - offset < size:
                break
            # A copy, because the frame must outlive the buffer.
            body = memoryview(bytes(memoryview(self._buffer)[offset : offset + size]))
            frames.append(decode_body(self._header, body))
            self._header = None
            offset += size
        if offset:
            del self._buffer[:offset]
        return frames
