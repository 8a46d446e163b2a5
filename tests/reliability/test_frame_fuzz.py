"""R29: whatever bytes come over a link, and however they are cut, at worst that link is closed.

Both ends that read from a process that may have gone mad: the input thread of a core, the channel of a frontend.
"""

import asyncio
import os
import queue
import socket
import struct
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engined.core.clients import ClientTable
from engined.core.commands import AbortRequests, AddRequest, ClientGone, Command, InputQueue, RefuseRequest
from engined.core.input_thread import InputSources, InputThread
from engined.core.request_factory import RequestFactory
from engined.errors import ProtocolError
from engined.ipc.aio import AsyncFrameChannel
from engined.ipc.decoder import FrameDecoder
from engined.ipc.frame import (
    HEADER_SIZE,
    MAX_BLOB_BYTES,
    MAX_BLOBS,
    MAX_JSON_BYTES,
    MessageType,
    decode_header,
    encode_frame,
)
from engined.process.signals import SignalInbox
from engined.protocol.codec import encode
from engined.protocol.engine import AbortRequests as AbortMessage
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.sampling import SamplingParams
from tests.reliability.settings import engine_settings

HEADER = struct.Struct("<4sBBHII")
EDGES = [0, 1, 5, MAX_JSON_BYTES, MAX_JSON_BYTES + 1, MAX_BLOB_BYTES, MAX_BLOB_BYTES + 1, 2**31, 2**32 - 1]
GOOD = EngineCoreRequest(
    request_id="r", prompt_token_ids=[1, 2], sampling=SamplingParams(max_tokens=3), arrival_time=0.0
)

headers = st.builds(
    HEADER.pack,
    st.sampled_from([b"EGD1", b"EGD2", b"HTTP", b"\0\0\0\0"]) | st.binary(min_size=4, max_size=4),
    st.integers(0, 255) | st.just(1),
    st.integers(0, 255) | st.sampled_from(MessageType),
    st.sampled_from([0, 1, MAX_BLOBS, MAX_BLOBS + 1, 2**16 - 1]),
    st.sampled_from(EDGES) | st.integers(0, 2**32 - 1),
    st.sampled_from(EDGES) | st.integers(0, 2**32 - 1),
)
plausible_headers = st.builds(
    HEADER.pack,
    st.just(b"EGD1"),
    st.just(1),
    st.sampled_from(MessageType),
    st.sampled_from([0, 1, MAX_BLOBS]),
    st.sampled_from(EDGES),
    st.sampled_from(EDGES),
)
payloads = st.sampled_from([b"", b"{", b"{}", b"[]", b'"x"', b"null", b"{" * 2000, encode(GOOD), encode(GOOD)[:-1]])
frames = st.builds(
    encode_frame,
    st.sampled_from(MessageType),
    payloads | st.binary(max_size=64),
    st.lists(st.binary(max_size=20), max_size=MAX_BLOBS),
)
streams = st.lists(headers | plausible_headers | frames | st.binary(max_size=40), min_size=1, max_size=6).map(b"".join)
cuts = st.lists(st.integers(1, 200), max_size=20)


def pieces(stream: bytes, sizes: list[int], *, dribbles: bool) -> Iterator[bytes]:
    """The stream, cut: into single bytes, or at the given sizes with the rest in one."""
    if dribbles:
        yield from (stream[i : i + 1] for i in range(len(stream)))
        return
    for size in sizes:
        if stream:
            yield stream[:size]
            stream = stream[size:]
    if stream:
        yield stream


@given(streams, cuts, st.booleans())
def test_a_decoder_holds_no_more_than_it_was_given(stream: bytes, sizes: list[int], dribbles: bool) -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for piece in pieces(stream, sizes, dribbles=dribbles):
            decoder.feed(piece)
    except ProtocolError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 200_000 + 8 * len(stream)


@pytest.mark.parametrize("length", EDGES)
def test_lengths_at_their_limits(length: int) -> None:
    """Refused above the limit before a byte of the body is there; below, no byte is set aside."""
    for json, blob, limit in ((length, 0, MAX_JSON_BYTES), (0, length, MAX_BLOB_BYTES)):
        data = HEADER.pack(b"EGD1", 1, MessageType.ADD, 0, json, blob)
        if length > limit:
            with pytest.raises(ProtocolError):
                decode_header(data)
            continue
        tracemalloc.start()
        FrameDecoder().feed(data) if length else None
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100_000


class Core:
    """The real input thread of an engine core, on a real socket."""

    def __init__(self, folder: Path, signals: SignalInbox) -> None:
        self.path = str(folder / "engine.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.commands: InputQueue = queue.SimpleQueue()
        self.connected: queue.SimpleQueue[int] = queue.SimpleQueue()
        sources = InputSources(self.listener, signals)
        self._input = InputThread(sources, ClientTable(), self.commands, RequestFactory(engine_settings(), None))
        self.thread = threading.Thread(target=self._input.run, args=(self.connected.put,), daemon=True)
        self.thread.start()
        self.good, self.good_index = self.connect()

    def connect(self) -> tuple[socket.socket, int]:
        """A new link and its index."""
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(5)
        link.connect(self.path)
        return link, self.connected.get(timeout=5)

    def check_alive(self) -> list[Command]:
        """A link that was open all the time still works; returns what was heard before."""
        self.good.sendall(encode_frame(MessageType.ABORT, encode(AbortMessage(request_ids=["still here"]))))
        heard: list[Command] = []
        while (command := self.commands.get(timeout=5)) != AbortRequests(self.good_index, ["still here"]):
            heard.append(command)
        return heard


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    with tempfile.TemporaryDirectory(prefix="engined-test-") as folder, SignalInbox() as signals:
        core = Core(Path(folder), signals)
        yield core
        core.good.close()
        core.listener.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stream=streams, sizes=cuts, dribbles=st.booleans())
def test_the_core_closes_the_link_and_lives(core: Core, stream: bytes, sizes: list[int], dribbles: bool) -> None:
    link, index = core.connect()
    with link:
        for piece in pieces(stream, sizes, dribbles=dribbles and len(stream) < 500):
            try:
                link.sendall(piece)
            except OSError:
                break  # closed already, rightly
    heard = []
    while not (heard and heard[-1] == ClientGone(index)):
        heard.append(core.commands.get(timeout=5))
    for command in heard[:-1]:
        assert (
            isinstance(command, AddRequest | RefuseRequest | AbortRequests) or type(command).__name__ == "CallUtility"
        )
    assert core.check_alive() == []
    assert core.thread.is_alive()


@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(b"EGD9", 1, MessageType.ADD, 0, 2, 0) + b"{}",
        HEADER.pack(b"EGD1", 1, MessageType.ADD, 0, 2**32 - 1, 0),
        HEADER.pack(b"EGD1", 1, MessageType.ADD, MAX_BLOBS + 1, 2, 0) + b"{}",
        encode_frame(MessageType.ADD, b'{"request_id": 5}'),
        encode_frame(MessageType.OUTPUTS, b"{}"),
        HEADER.pack(b"EGD1", 1, MessageType.ABORT, 1, 2, 7) + struct.pack("<I", 6) + b"{}1234567",
    ],
)
def test_the_core_tells_by_closing(core: Core, data: bytes) -> None:
    link, index = core.connect()
    with link:
        link.sendall(data)
        assert link.recv(1) == b"", "the link is closed while the other side still waits"
    assert core.check_alive() == [ClientGone(index)]


def test_descriptors_that_are_sent_along_are_not_kept(core: Core) -> None:
    """H42: the kernel closes what nobody asked for."""
    link, index = core.connect()
    with link, open(os.devnull) as file:
        before = len(os.listdir("/proc/self/fd"))
        frame = encode_frame(MessageType.ABORT, encode(AbortMessage(request_ids=[])))
        socket.send_fds(link, [frame], [file.fileno()] * 200)
        assert core.commands.get(timeout=5) == AbortRequests(index, [])
        assert len(os.listdir("/proc/self/fd")) == before
    assert core.commands.get(timeout=5) == ClientGone(index)
    assert core.check_alive() == []


@contextmanager
def served(folder: Path, stream: bytes, sizes: list[int], dribbles: bool) -> Iterator[str]:
    """A peer that accepts one connection, writes the stream and closes."""
    path = str(folder / "peer.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def write() -> None:
            connection, _ = listener.accept()
            with connection:
                for piece in pieces(stream, sizes, dribbles=dribbles and len(stream) < 500):
                    try:
                        connection.sendall(piece)
                    except OSError:
                        return

        thread = threading.Thread(target=write)
        thread.start()
        yield path
        thread.join(5)
        assert not thread.is_alive()


@settings(max_examples=60, deadline=None)
@given(streams, cuts, st.booleans())
def test_the_frontend_hears_whole_frames_or_an_error(stream: bytes, sizes: list[int], dribbles: bool) -> None:
    async def receive_all(path: str) -> int:
        channel = await AsyncFrameChannel.connect(path)
        count = 0
        try:
            async with asyncio.timeout(5):
                while (frame := await channel.receive()) is not None:
                    assert isinstance(frame.type, MessageType)
                    count += 1
        except ProtocolError:
            pass
        finally:
            channel.close()
        return count

    with (
        tempfile.TemporaryDirectory(prefix="engined-test-") as folder,
        served(Path(folder), stream, sizes, dribbles) as path,
    ):
        assert asyncio.run(receive_all(path)) <= stream.count(b"EGD1")


def test_header_size_is_what_the_fuzzing_packs() -> None:
    assert HEADER.size == HEADER_SIZE
