"""The asyncio channel: frames in any cutting, large bodies, limits, end of stream, backpressure."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engined.errors import ProtocolError
from engined.ipc.aio import AsyncFrameChannel
from engined.ipc.frame import MAX_JSON_BYTES, Frame, MessageType, encode_frame


class Peer:
    """The other end, at the level of bytes."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.connected.set()


@pytest.fixture
async def link() -> AsyncIterator[tuple[AsyncFrameChannel, Peer]]:
    folder = Path(tempfile.mkdtemp(prefix="engined-test-"))
    peer = Peer()
    server = await asyncio.start_unix_server(peer.accept, folder / "s")
    channel = await AsyncFrameChannel.connect(str(folder / "s"))
    await peer.connected.wait()
    yield channel, peer
    channel.close()
    peer.writer.close()
    server.close()
    shutil.rmtree(folder)


async def receive(channel: AsyncFrameChannel) -> Frame:
    async with asyncio.timeout(10):
        frame = await channel.receive()
    assert frame is not None
    return frame


async def test_small_and_large_frames_in_order(link: tuple[AsyncFrameChannel, Peer]) -> None:
    channel, peer = link
    sizes = [0, 1, 1000, 1 << 16, 256 << 10, 3 << 20, 5, 10 << 20, 0]

    async def write_all() -> None:
        for number, size in enumerate(sizes):
            payload = bytes([number]) * size
            peer.writer.write(encode_frame(MessageType.OUTPUTS, payload, [b"blob", payload[:7]]))
            await peer.writer.drain()

    task = asyncio.create_task(write_all())
    for number, size in enumerate(sizes):
        frame = await receive(channel)
        assert frame.type is MessageType.OUTPUTS
        assert bytes(frame.payload) == bytes([number]) * size
        assert [bytes(blob) for blob in frame.blobs] == [b"blob", bytes([number]) * min(size, 7)]
    await task


@settings(max_examples=60, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=8),
    cuts=st.lists(st.integers(min_value=1, max_value=30), min_size=1, max_size=20),
)
def test_any_cutting_gives_the_same_frames(payloads: list[bytes], cuts: list[int]) -> None:
    """Drives the protocol object by hand."""
    data = b"".join(encode_frame(MessageType.ADD, payload, [payload]) for payload in payloads)

    async def feed() -> list[bytes]:
        channel = AsyncFrameChannel()
        position = turn = 0
        while position < len(data):
            count = cuts[turn % len(cuts)]
            channel.data_received(data[position : position + count])
            position, turn = position + count, turn + 1
        return [bytes((await receive(channel)).payload) for _ in payloads]

    assert asyncio.run(feed()) == payloads


async def test_end_of_stream(link: tuple[AsyncFrameChannel, Peer]) -> None:
    channel, peer = link
    peer.writer.write(encode_frame(MessageType.READY, b"{}") + b"EGD1")
    peer.writer.close()
    assert (await receive(channel)).type is MessageType.READY
    assert await channel.receive() is None
    assert channel.is_closed
    channel.send(MessageType.ADD, b"{}")
    await channel.drain()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode_frame(MessageType.ADD, b"")[:5] + b"\x63" + bytes(10),
        b"EGD1\x01\x02\x00\x00" + (MAX_JSON_BYTES + 1).to_bytes(4, "little") + bytes(4),
        b"EGD1\x01\x02\x00\x00" + bytes(4) + b"\xff\xff\xff\xff",
    ],
)
async def test_a_peer_that_breaks_the_protocol(link: tuple[AsyncFrameChannel, Peer], garbage: bytes) -> None:
    channel, peer = link
    peer.writer.write(garbage)
    with pytest.raises(ProtocolError):
        await receive(channel)
    assert channel.is_closed
    assert await peer.reader.read() == b""


async def test_sending_blocks_while_the_peer_does_not_read(link: tuple[AsyncFrameChannel, Peer]) -> None:
    channel, peer = link
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    channel.send(MessageType.ADD, bytes(8 << 20))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(channel.drain(), 0.2)
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
    task = asyncio.create_task(peer.reader.readexactly(8 << 20))
    await asyncio.wait_for(channel.drain(), 10)
    await task


async def test_receiving_stops_while_nobody_takes(
    link: tuple[AsyncFrameChannel, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engined.ipc.aio.MAX_QUEUED_BYTES", 1 << 20)
    channel, peer = link
    frame = encode_frame(MessageType.OUTPUTS, bytes(100_000))
    peer.writer.write(frame * 100)
    await asyncio.sleep(0.3)
    assert channel._queued_bytes < (1 << 20) + (1 << 19)
    for _ in range(100):
        await receive(channel)
