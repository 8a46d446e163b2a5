"""Connections: how many, how long each step may take, and what happens when descriptors run out."""

import asyncio
import errno
import itertools
import json
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from engined.config.schema import Config, ServerConfig
from engined.frontend import acceptor as acceptor_module
from engined.frontend.acceptor import Acceptor
from engined.frontend.connection_limits import ConnectionLimits, ConnectionPlace, connection_limits
from engined.frontend.connection_timers import ConnectionTimes
from tests.frontend.conftest import RunningFrontend, StartFrontend

pytestmark = pytest.mark.alone

SHORT = ConnectionTimes(head=0.4, idle=1.0)
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Client:
    """A raw connection over the Unix socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, Any]:
        """Status and JSON of the next answer."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            [length] = [line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")]
            return int(head.split()[1]), json.loads(await self.reader.readexactly(int(length)))

    async def seconds_until_closed(self) -> tuple[float, bytes]:
        """How long the server keeps the connection, and what it says until then."""
        start = time.monotonic()
        async with asyncio.timeout(10):
            data = await self.reader.read()
        return time.monotonic() - start, data


Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects to a frontend; closed after the test."""
    writers: list[asyncio.StreamWriter] = []

    async def connect(frontend: RunningFrontend, data: bytes = b"") -> Client:
        reader, writer = await asyncio.open_unix_connection(frontend.path)
        writers.append(writer)
        writer.write(data)
        return Client(reader, writer)

    yield connect
    for writer in writers:
        writer.close()


async def until(condition: Any, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


# How many


def test_limits_in_all_and_by_network() -> None:
    limits = ConnectionLimits(5, 2)
    place = limits.take(("192.0.2.1", 1))
    assert place is not None and limits.take(("::ffff:192.0.2.1", 2, 0, 0)) is not None
    assert limits.take(("192.0.2.1", 3)) is None
    assert limits.take(("2001:db8::1", 1, 0, 0)) and limits.take(("2001:db8::2", 1, 0, 0))
    assert limits.take(("2001:db8::3", 1, 0, 0)) is None
    assert limits.take("") is not None  # a Unix socket
    assert (limits.num_open, limits.num_refused) == (5, 2)
    assert limits.take(("127.0.0.1", 1)) is None
    place.leave()
    place.leave()
    assert limits.num_open == 4
    assert limits.take(("192.0.2.1", 3)) is not None


def test_loopback_has_only_the_limit_of_all() -> None:
    limits = ConnectionLimits(5, 1)
    assert all(limits.take(address) for address in (("127.0.0.1", 1), ("127.0.0.1", 2), ("::1", 1, 0, 0)))


def test_the_limit_of_files_is_raised_as_far_as_may_be() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        connection_limits(ServerConfig(max_connections=400))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (528, hard)
        limits = connection_limits(ServerConfig(max_connections=hard * 2))
        places = list(itertools.takewhile(bool, (limits.take("") for _ in range(hard * 2))))
        assert len(places) == hard - 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_above_the_limit_connections_are_closed_at_once(start_frontend: StartFrontend, connect: Connect) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(max_connections=4)))
    clients = [await connect(frontend) for _ in range(3)]  # the fourth is the client of the fixture
    await until(lambda: frontend.pressure.connections.num_open == 4)
    seconds, data = await (await connect(frontend)).seconds_until_closed()
    assert (data, seconds < 0.5) == (b"", True), seconds
    clients[0].writer.close()
    await until(lambda: frontend.pressure.connections.num_open == 3)
    assert (await (await connect(frontend, GET)).answer())[0] == 200
    assert await frontend.metric_of_process("http_connection_refusals_total") == 1


# How long


async def test_what_a_client_may_let_pass(start_frontend: StartFrontend, connect: Connect) -> None:
    """All at once, for they mostly wait."""
    frontend = await start_frontend(times=SHORT)
    await asyncio.gather(
        check_silence(frontend, connect),
        check_late_head(frontend, connect, b"G"),
        check_late_head(frontend, connect, b"GET /livez HTTP/1.1\r\n"),
        check_late_head(frontend, connect, b"POST /v1/completions HTTP/1.1\r\nHost: loc"),
        check_dribble(frontend, connect),
        check_idleness(frontend, connect),
    )


async def check_silence(frontend: RunningFrontend, connect: Connect) -> None:
    """A connection without a byte is closed without a word."""
    seconds, data = await (await connect(frontend)).seconds_until_closed()
    assert data == b"" and 0.3 < seconds < 0.9


async def check_late_head(frontend: RunningFrontend, connect: Connect, begin: bytes) -> None:
    """A head that does not come is answered with 408."""
    client = await connect(frontend, begin)
    seconds, data = await client.seconds_until_closed()
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and 0.3 < seconds < 0.9
    assert json.loads(body)["error"]["code"] == "request_timeout"


async def check_dribble(frontend: RunningFrontend, connect: Connect) -> None:
    """A head that comes byte by byte gets no more time, also after a request that was answered."""
    client = await connect(frontend, GET)
    assert (await client.answer())[0] == 200
    start = time.monotonic()
    with pytest.raises(ConnectionError):
        for byte in itertools.cycle(b"GET /livez HTTP/1.1\r\nX: "):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0.02)
            if client.reader.at_eof():
                raise ConnectionError
    assert 0.3 < time.monotonic() - start < 1.2


async def check_idleness(frontend: RunningFrontend, connect: Connect) -> None:
    """Between two requests there is more time, but not for ever."""
    client = await connect(frontend, GET)
    assert (await client.answer())[0] == 200
    await asyncio.sleep(0.6)  # longer than a head may take
    client.writer.write(GET)
    assert (await client.answer())[0] == 200
    seconds, data = await client.seconds_until_closed()
    assert data == b"" and 0.7 < seconds < 2.0


async def test_a_body_and_an_answer_may_take_longer_than_a_head(
    start_frontend: StartFrontend, connect: Connect
) -> None:
    """Nor is the answer cut short by half a head that waits behind it."""
    frontend = await start_frontend(times=ConnectionTimes(head=0.1))
    frontend.engine.step_delay = 0.03
    body = b'{"prompt": "x", "max_tokens": 10}'
    client = await connect(frontend, POST + b"Content-Length: %d\r\n\r\n" % len(body))
    for byte in body[:10]:
        await asyncio.sleep(0.03)
        client.writer.write(bytes([byte]))
    client.writer.write(body[10:])
    await asyncio.sleep(0.05)
    client.writer.write(b"GET /livez HT")
    assert (await client.answer())[0] == 200
    _, data = await client.seconds_until_closed()
    assert data.startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_says_that_it_is_too_large_is_not_read(
    start_frontend: StartFrontend, connect: Connect
) -> None:
    frontend = await start_frontend()
    client = await connect(frontend, POST + b"Content-Length: 99999999999\r\n\r\n{")
    start = time.monotonic()
    status, body = await client.answer()
    assert (status, body["error"]["code"]) == (413, "request_too_large")
    assert time.monotonic() - start < 0.5


async def test_an_upload_that_comes_too_slowly_ends(
    start_frontend: StartFrontend, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("engined.frontend.routes.files.UPLOAD_SECONDS", 0.3)
    frontend = await start_frontend(config=Config(server=ServerConfig(data_dir=str(tmp_path))))
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    client = await connect(frontend, head + b"Content-Length: 100000\r\n\r\n" + part)
    for _ in range(3):
        await asyncio.sleep(0.03)
        client.writer.write(b"{}\n" * 100)
    status, body = await client.answer()
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert not any(path.is_file() for path in tmp_path.rglob("file-*/*"))


async def test_pipelined_requests_are_answered_in_order(start_frontend: StartFrontend, connect: Connect) -> None:
    frontend = await start_frontend()
    count = 1000  # of which 32 are parsed ahead
    requests = (b"GET /v1/models/m%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number for number in range(count))
    client = await connect(frontend)
    sending = asyncio.create_task(drain_all(client.writer, b"".join(requests)))
    for number in range(count):
        status, body = await client.answer()
        assert status == 404 and f"'m{number}'" in body["error"]["message"]
    await sending


async def drain_all(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


# Descriptors


class BrokenListener:
    """A listening socket whose `accept` fails as long as `error` is set."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.error: OSError | None = OSError(errno.EMFILE, "Too many open files")
        self.num_calls = 0

    def accept(self) -> Any:
        self.num_calls += 1
        if self.error is not None:
            raise self.error
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


async def test_without_descriptors_it_waits_and_neither_spins_nor_dies(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor_module, "RETRY_SECONDS", 0.1)
    broken: Any = BrokenListener(listener)
    accepted: list[ConnectionPlace] = []

    def make_connection(place: ConnectionPlace) -> asyncio.Protocol:
        accepted.append(place)
        return asyncio.Protocol()

    acceptor = Acceptor(broken, make_connection, ConnectionLimits(10, 10))
    _, writer = await asyncio.open_connection(*listener.getsockname())
    await asyncio.sleep(0.5)
    assert 3 <= broken.num_calls <= 7 and accepted == []
    broken.error = None
    await until(lambda: len(accepted) == 1, seconds=1)
    writer.close()
    acceptor.close()
    acceptor.close()


async def test_when_descriptors_are_free_again_it_serves_within_a_second(start_frontend: StartFrontend) -> None:
    """With a limit that really is too low, while others hold what there is."""
    frontend = await start_frontend(tcp=True)
    assert frontend.port is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[socket.socket] = []
    client = socket.socket()
    client.setblocking(False)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 20, hard))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                held.append(socket.socket())
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", frontend.port))
        await asyncio.get_running_loop().sock_sendall(client, GET)
        assert (await frontend.get("/livez"))[0] == 200  # over a connection that is open already
        await asyncio.sleep(0.7)
        for connection in held:
            connection.close()
        start = time.monotonic()
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 100), 5)
        assert data.startswith(b"HTTP/1.1 200") and time.monotonic() - start < 1.0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.close()
        for connection in held:
            connection.close()


# The loop


async def test_the_lag_of_the_loop_is_shown(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    await asyncio.sleep(0.15)
    time.sleep(0.35)
    await asyncio.sleep(0.15)
    assert 0.2 < frontend.pressure.loop_lag.longest < 2
    assert await frontend.metric_of_process("event_loop_lag_seconds") > 0.2
