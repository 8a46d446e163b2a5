"""The frame: a fixed binary header, one JSON payload, then raw binary blobs.

    offset  0  magic      4 bytes   b"EGD1"
            4  version    u8
            5  type       u8        MessageType
            6  num_blobs  u16
            8  json_len   u32
           12  blob_len   u32       bytes of all blobs together
           16  num_blobs x u32      length of each blob
               json_len bytes       orjson
               blob_len bytes       tensors, media

Integers are little-endian. Lengths are checked against the limits before anything is allocated.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from engined.errors import ProtocolError

MAGIC = b"EGD1"
VERSION = 1
MAX_JSON_BYTES = 64 << 20
MAX_BLOBS = 64
MAX_BLOB_BYTES = 256 << 20

_HEADER = struct.Struct("<4sBBHII")
HEADER_SIZE = _HEADER.size

Buffer = bytes | bytearray | memoryview


class MessageType(IntEnum):
    """What the payload is. 1-6 run between frontend and core, 16-20 between core and worker."""

    READY = 1
    ADD = 2
    ABORT = 3
    UTILITY = 4
    OUTPUTS = 5
    FATAL = 6
    INITIALIZE = 16
    EXECUTE = 17
    SAMPLE = 18
    RESULT = 19
    RELEASE = 20


@dataclass(frozen=True, slots=True)
class Frame:
    """One received message; payload and blobs are owned by the frame."""

    type: MessageType
    payload: Buffer
    blobs: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The fixed part of a frame, already within the limits."""

    type: MessageType
    num_blobs: int
    json_len: int
    blob_len: int

    @property
    def body_size(self) -> int:
        """Bytes that follow the header."""
        return 4 * self.num_blobs + self.json_len + self.blob_len


def encode_frame(type: MessageType, payload: bytes, blobs: Sequence[Buffer] = ()) -> bytes:
    """Build one frame. Raises ProtocolError if it would exceed the limits of the receiver."""
    blob_len = sum(len(blob) for blob in blobs)
    if len(payload) > MAX_JSON_BYTES or len(blobs) > MAX_BLOBS or blob_len > MAX_BLOB_BYTES:
        raise ProtocolError(f"{type.name} frame is too large: {len(payload)} bytes of JSON, {blob_len} of blobs")
    head = _HEADER.pack(MAGIC, VERSION, type, len(blobs), len(payload), blob_len)
    lengths = struct.pack(f"<{len(blobs)}I", *(len(blob) for blob in blobs))
    return b"".join((head, lengths, payload, *blobs))


def decode_header(data: Buffer) -> FrameHeader:
    """Parse the first HEADER_SIZE bytes. Raises ProtocolError on a foreign, unknown or oversized frame."""
    magic, version, type_number, num_blobs, json_len, blob_len = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise ProtocolError(f"not an engined frame of version {VERSION}: {bytes(data[:5])!r}")
    try:
        message_type = MessageType(type_number)
    except ValueError:
        raise ProtocolError(f"unknown message type {type_number}") from None
    if json_len > MAX_JSON_BYTES or num_blobs > MAX_BLOBS or blob_len > MAX_BLOB_BYTES:
        raise ProtocolError(f"{message_type.name} frame over the limits: {json_len} bytes of JSON, {blob_len} of blobs")
    return FrameHeader(message_type, num_blobs, json_len, blob_len)


def decode_body(header: FrameHeader, body: memoryview) -> Frame:
    """Split the `header.body_size` bytes after the header. Raises ProtocolError if the blob lengths do not add up."""
    lengths = struct.unpack_from(f"<{header.num_blobs}I", body)
    if sum(lengths) != header.blob_len:
        raise ProtocolError(f"{header.type.name} frame: blob lengths do not add up to {header.blob_len}")
    offset = 4 * header.num_blobs
    payload = body[offset : offset + header.json_len]
    offset += header.json_len
    blobs = []
    for length in lengths:
        blobs.append(body[offset : offset + length])
        offset += length
    return Frame(header.type, payload, tuple(blobs))
