"""Clients that take their answer slowly, or not at all: bounded memory, an end, and no harm to others."""

import asyncio
import io
import json
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engined.config.schema import Config, ServerConfig
from engined.frontend.connection_timers import ConnectionTimes
from engined.frontend.http_connection import HttpConnection
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.output.collector import MAX_PENDING_BYTES, RequestOutputCollector
from engined.protocol.engine import TokenLogprobs
from tests.frontend.conftest import RunningFrontend, StartFrontend

COMPLETIONS = "/v1/completions"
IMPATIENT = ConnectionTimes(stall=0.6)
MOST_BUFFERED = 256 << 10
ENDLESS = [1000] * 400_000


def post(path: str, body: dict[str, Any]) -> bytes:
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Closed after the test."""
    opened: list[socket.socket] = []
    yield opened
    for client in opened:
        client.close()


def connect(frontend: RunningFrontend, sockets: list[socket.socket], data: bytes) -> socket.socket:
    """A client that sends a request, and reads only when it is told to."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(frontend.path)
    client.sendall(data)
    client.setblocking(False)
    sockets.append(client)
    return client


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Transport]:
    """Those of all connections that the server has accepted since; the kernel takes little from them at once."""
    accepted: list[asyncio.Transport] = []
    original = HttpConnection.connection_made

    def connection_made(self: HttpConnection, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        accepted.append(transport)
        original(self, transport)

    monkeypatch.setattr(HttpConnection, "connection_made", connection_made)
    return accepted


def unsent_bytes(transports: list[asyncio.Transport]) -> int:
    """The most that waits in one of them."""
    return max((transport.get_write_buffer_size() for transport in transports), default=0)


async def until(condition: Any, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def read_all(client: socket.socket) -> bytes:
    data = b""
    async with asyncio.timeout(10):
        while piece := await asyncio.get_running_loop().sock_recv(client, 1 << 16):
            data += piece
    return data


def output(text: str = "", finish_reason: str | None = None, num_logprobs: int = 0) -> ChoiceOutput:
    logprobs = [TokenLogprobs(token_ids=[1] * num_logprobs, logprobs=[0.0] * num_logprobs, rank=1)]
    return ChoiceOutput(index=0, text=text, logprobs=logprobs, finish_reason=finish_reason)


# What waits for a consumer


async def test_what_a_consumer_is_free_to_take_is_never_too_much() -> None:
    """A large first output, as of a prompt's log-probabilities, is no fault of the client's."""
    collector = RequestOutputCollector(1, final_only=False)
    consumer = asyncio.create_task(collector.get())
    await asyncio.sleep(0)
    collector.put(output("x" * MAX_PENDING_BYTES))
    collector.put(output("x" * MAX_PENDING_BYTES))
    assert not collector.is_overfull
    assert len((await consumer)[0].text) == 2 * MAX_PENDING_BYTES


async def test_what_waits_for_a_busy_consumer_is_bounded() -> None:
    collector = RequestOutputCollector(1, final_only=False)
    collector.put(output("first"))
    await collector.get()
    collector.is_held_up = True
    count = 0
    while not collector.is_overfull:
        collector.put(output(num_logprobs=20))
        count += 1
    assert count == MAX_PENDING_BYTES // (20 * 128) + 1
    collector.put(output("more"))
    collector.put_error(RuntimeError("too slow"))
    with pytest.raises(RuntimeError):
        await collector.get()


async def test_an_answer_that_has_ended_is_kept_however_large() -> None:
    collector = RequestOutputCollector(1, final_only=False)
    collector.put(output("first"))
    await collector.get()
    collector.is_held_up = True
    collector.put(output("x" * MAX_PENDING_BYTES, finish_reason="stop"))
    assert not collector.is_overfull
    assert (await collector.get())[0].finish_reason == "stop"


# Over real sockets


async def test_a_client_that_never_reads_is_cut_off(
    start_frontend: StartFrontend, sockets: list[socket.socket], transports: list[asyncio.Transport]
) -> None:
    """On all routes that stream, and long before it would have too much waiting."""
    frontend = await start_frontend(script=lambda request: ENDLESS, max_model_len=500_000, times=IMPATIENT)
    frontend.engine.step_delay = 0.01
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 300_000, "stream": True}
    bodies: dict[str, dict[str, Any]] = {
        COMPLETIONS: {"prompt": "x", "max_tokens": 300_000, "stream": True},
        "/v1/chat/completions": chat,
        "/v1/messages": chat,
        "/v1/responses": {"input": "x", "max_output_tokens": 300_000, "stream": True},
    }
    for path, body in bodies.items():
        connect(frontend, sockets, post(path, body))
    await frontend.engine.wait_for_abort(len(bodies))
    await until(lambda: frontend.pressure.connections.num_open == 1)  # the client of the fixture
    assert not frontend.engine.running
    assert (await frontend.get("/readyz"))[0] == 200


async def test_a_stalled_stream_buffers_at_most_256_kib(
    start_frontend: StartFrontend,
    sockets: list[socket.socket],
    transports: list[asyncio.Transport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As fast as it can, with 20 alternatives a token; the client is then told why, if it reads after all."""
    frontend = await start_frontend(script=lambda request: ENDLESS, max_model_len=500_000)
    frontend.engine.tokens_per_step = 4
    original = RequestOutputCollector._note_bytes
    buffered, pending = [0], [0]

    def note_bytes(self: RequestOutputCollector, num_bytes: int, *, is_end: bool) -> None:
        original(self, num_bytes, is_end=is_end)
        pending.append(self._num_pending_bytes)
        buffered.append(unsent_bytes(transports) + pending[-1])

    monkeypatch.setattr(RequestOutputCollector, "_note_bytes", note_bytes)
    body = {"prompt": "x", "max_tokens": 300_000, "logprobs": 20, "stream": True}
    client = connect(frontend, sockets, post(COMPLETIONS, body))
    await frontend.engine.wait_for_abort()
    assert max(pending) > MAX_PENDING_BYTES and max(buffered) <= MOST_BUFFERED
    events = (await read_until(client, b"[DONE]")).decode()
    assert '"client_too_slow"' in events
    print("buffered at most", max(buffered), "of which pending", max(pending))


async def read_until(client: socket.socket, end: bytes) -> bytes:
    data = b""
    async with asyncio.timeout(10):
        while end not in data:
            data += await asyncio.get_running_loop().sock_recv(client, 1 << 16)
    return data


async def test_a_slow_but_steady_reader_gets_everything(
    start_frontend: StartFrontend, sockets: list[socket.socket]
) -> None:
    """It takes several times as long as a client may take nothing at all."""
    frontend = await start_frontend(script=lambda request: ENDLESS, max_model_len=500_000, times=IMPATIENT)
    body = {"prompt": "x", "max_tokens": 6000, "stream": True}
    client = connect(frontend, sockets, post(COMPLETIONS, body))
    frontend.engine.tokens_per_step = 100
    data, start = b"", time.monotonic()
    async with asyncio.timeout(20):
        while b"[DONE]" not in data:
            data += await asyncio.get_running_loop().sock_recv(client, 1 << 12)
            await asyncio.sleep(0.005)
    assert frontend.engine.aborted == []
    print("took", time.monotonic() - start)


async def test_a_whole_answer_that_nobody_reads_is_dropped(
    start_frontend: StartFrontend, sockets: list[socket.socket], transports: list[asyncio.Transport]
) -> None:
    """Also one whose connection we have closed meanwhile, which by itself would wait for its client for ever."""
    frontend = await start_frontend(script=lambda request: ENDLESS, max_model_len=500_000, times=IMPATIENT)
    frontend.engine.tokens_per_step = 1000
    request = post(COMPLETIONS, {"prompt": "x", "max_tokens": 10_000})
    connect(frontend, sockets, request)
    connect(frontend, sockets, request.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close"))
    await until(lambda: frontend.pressure.connections.num_open == 3)
    await until(lambda: frontend.pressure.connections.num_open == 1)
    assert len(frontend.engine.added) == 2


async def test_pipelined_answers_that_nobody_reads_are_bounded(
    start_frontend: StartFrontend, sockets: list[socket.socket], transports: list[asyncio.Transport]
) -> None:
    frontend = await start_frontend(times=IMPATIENT)
    client = connect(frontend, sockets, b"")
    data = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40_000
    most = 0
    sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(client, data))
    async with asyncio.timeout(20):
        while not sending.done():
            most = max(most, unsent_bytes(transports))
            await asyncio.sleep(0.005)
    assert 0 < most <= MOST_BUFFERED
    with pytest.raises(OSError):  # it is disconnected long before everything is sent
        await sending
    await until(lambda: frontend.pressure.connections.num_open == 1)


async def test_a_file_that_nobody_reads_is_dropped(
    start_frontend: StartFrontend, sockets: list[socket.socket], tmp_path: Path
) -> None:
    config = Config(server=ServerConfig(data_dir=str(tmp_path)))
    frontend = await start_frontend(config, times=IMPATIENT)
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", io.BytesIO(b"{}\n" * 700_000), filename="lines.jsonl")
    async with frontend.client.post("http://engined/v1/files", data=form) as response:
        file_id = (await response.json())["id"]
    connect(frontend, sockets, f"GET /v1/files/{file_id}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await until(lambda: frontend.pressure.connections.num_open == 2)
    await until(lambda: frontend.pressure.connections.num_open == 1)
    async with frontend.client.get(f"http://engined/v1/files/{file_id}/content") as response:
        assert len(await response.read()) == 2_100_000


@pytest.mark.alone
async def test_others_do_not_notice(
    start_frontend: StartFrontend, sockets: list[socket.socket], transports: list[asyncio.Transport]
) -> None:
    """Streams of others beside 10 clients that do not read, and without them."""
    frontend = await start_frontend(script=lambda request: ENDLESS, max_model_len=500_000, tcp=True)
    frontend.engine.step_delay = 0.005

    async def gaps() -> list[float]:
        gaps, last = [], None
        body = {"prompt": "x", "max_tokens": 60, "stream": True}
        async with frontend.client.post(f"http://engined{COMPLETIONS}", json=body) as response:
            async for _ in response.content.iter_any():
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now
        return gaps

    alone = statistics.median(await gaps())
    for _ in range(10):
        client = socket.socket()
        sockets.append(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.connect(("127.0.0.1", frontend.port))
        client.sendall(post(COMPLETIONS, {"prompt": "x", "max_tokens": 300_000, "logprobs": 5, "stream": True}))
    await until(lambda: sum(transport.get_write_buffer_size() > 0 for transport in transports) == 10)
    beside = statistics.median(await gaps())
    print("between two tokens alone and beside:", alone, beside)
    assert beside < 10 * alone
