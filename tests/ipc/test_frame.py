"""The frame format and both of its readers: any split of the stream, and every way to break a frame."""

import socket
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engined.errors import ProtocolError
from engined.ipc.channel import BlockingChannel
from engined.ipc.decoder import FrameDecoder
from engined.ipc.frame import HEADER_SIZE, MAX_BLOB_BYTES, MAX_JSON_BYTES, Frame, MessageType, encode_frame

messages = st.tuples(
    st.sampled_from(MessageType), st.binary(max_size=300), st.lists(st.binary(max_size=50), max_size=4)
)


def as_tuple(frame: Frame) -> tuple[MessageType, bytes, list[bytes]]:
    return frame.type, bytes(frame.payload), [bytes(blob) for blob in frame.blobs]


@settings(deadline=None)
@given(st.lists(messages, max_size=5), st.data())
def test_any_split_of_the_stream_gives_the_same_frames(sent: list, data: st.DataObject) -> None:  # type: ignore[type-arg]
    stream = b"".join(encode_frame(*message) for message in sent)
    decoder = FrameDecoder()
    received = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += decoder.feed(stream[:size])
        stream = stream[size:]
    assert [as_tuple(frame) for frame in received] == sent
    assert not decoder.is_mid_frame


def header(magic: bytes = b"EGD1", version: int = 1, type: int = 2, num_blobs: int = 0, json: int = 0, blob: int = 0):
    return struct.pack("<4sBBHII", magic, version, type, num_blobs, json, blob)


@pytest.mark.parametrize(
    "data",
    [
        header(magic=b"HTTP"),
        header(version=2),
        header(type=77),
        header(json=MAX_JSON_BYTES + 1),
        header(json=2**32 - 1),
        header(blob=MAX_BLOB_BYTES + 1, num_blobs=1),
        header(num_blobs=65),
        header(num_blobs=1, blob=5) + struct.pack("<I", 4) + b"12345",
    ],
)
def test_broken_frames_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(data)


@given(st.binary(min_size=HEADER_SIZE, max_size=200))
def test_random_bytes_never_do_worse_than_a_protocol_error(data: bytes) -> None:
    try:
        FrameDecoder().feed(data)
    except ProtocolError:
        return


def test_oversized_frames_are_not_sent() -> None:
    with pytest.raises(ProtocolError):
        encode_frame(MessageType.ADD, b"", [b""] * 65)


def test_channel_carries_large_frames_both_ways() -> None:
    left, right = socket.socketpair()
    a, b = BlockingChannel(left), BlockingChannel(right)
    payload = bytes(range(256)) * 8192

    def echo() -> None:
        frame = b.receive()
        assert frame is not None
        b.send(frame.type, bytes(frame.payload), frame.blobs)

    thread = threading.Thread(target=echo)
    thread.start()
    a.send(MessageType.EXECUTE, payload, [b"blob"])
    answer = a.receive()
    thread.join()
    assert answer is not None
    assert as_tuple(answer) == (MessageType.EXECUTE, payload, [b"blob"])
    b.close()
    assert a.receive() is None
    a.close()


def test_a_frame_that_is_cut_is_an_error() -> None:
    left, right = socket.socketpair()
    left.sendall(encode_frame(MessageType.ADD, b"12345")[:-1])
    left.close()
    channel = BlockingChannel(right)
    with pytest.raises(ProtocolError, match="inside a frame"):
        channel.receive()
    channel.close()


def test_shutdown_wakes_a_receiver() -> None:
    left, right = socket.socketpair()
    channel = BlockingChannel(right)
    timer = threading.Timer(0.1, channel.shutdown)
    timer.start()
    assert channel.receive() is None
    timer.join()
    channel.close()
    left.close()
