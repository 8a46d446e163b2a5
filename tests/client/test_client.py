"""Both clients against a small HTTP server on TCP and on a Unix socket: answers, streams, errors, hang-ups."""

import asyncio
import http.server
import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engined.client import AsyncClient, Client, ClientError

MESSAGES = [{"role": "user", "content": "Hello"}]
DELTAS = ["Hé", "llo ", "🙂"]


class _Handler(http.server.BaseHTTPRequestHandler):
    """Speaks as the real server does; the model's name chooses what goes wrong."""

    protocol_version = "HTTP/1.1"
    hung_up = threading.Event()

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, {"data": [{"id": "first"}, {"id": "second"}]})
        else:
            self._answer(503, {"error": {"message": "loading", "code": "not_ready", "param": None}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body["authorization"] = self.headers["Authorization"]
        if body["model"] == "bad":
            error = {"message": "temperature must be from 0 to 2", "param": "temperature", "code": "out_of_range"}
            self._answer(400, {"error": error})
        elif body["model"] == "html":
            self._answer(502, "<html>proxy</html>")
        elif body["stream"]:
            try:
                self._stream(body["model"])
            except OSError:
                self.hung_up.set()
                self.close_connection = True
        else:
            self._answer(200, {"echo": body, "path": self.path})

    def _answer(self, status: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, model: str) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(b": comment\n\n")
        for delta in DELTAS:
            event = json.dumps({"choices": [{"delta": {"content": delta}}]}, ensure_ascii=False).encode()
            # Events are cut in the middle of a character, as a network may do.
            self._chunk(b"data: " + event[:35])
            self._chunk(event[35:] + b"\n\n")
            if model == "broken":
                self.close_connection = True
                return
        if model == "dies":
            self._chunk(b'data: {"error": {"message": "engine is gone", "code": 500}}\n\n')
        while model == "endless":
            self._chunk(b": still here\n\n")
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


@pytest.fixture(params=["tcp", "unix"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Keyword arguments that lead a client to a running server."""
    _Handler.hung_up.clear()
    if request.param == "tcp":
        running: socketserver.BaseServer = _TcpServer(("127.0.0.1", 0), _Handler)
        where = {"url": f"http://127.0.0.1:{running.server_address[1]}/v1"}  # type: ignore[index]
    else:
        running = _UnixServer(str(tmp_path / "s.sock"), _Handler)
        where = {"uds": str(tmp_path / "s.sock")}
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield where
    running.shutdown()
    running.server_close()
    thread.join()


def _text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)


def test_answer_and_fields(server: dict[str, Any]) -> None:
    client = Client(**server, api_key="k")
    answer = client.chat(MESSAGES, temperature=0, max_tokens=5)
    assert answer["path"] == "/v1/chat/completions"
    assert answer["echo"] == {
        "model": "first",
        "stream": False,
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 5,
        "authorization": "Bearer k",
    }
    answer = Client(**server, model="mine").complete("Once")
    assert answer["path"] == "/v1/completions"
    assert (answer["echo"]["prompt"], answer["echo"]["model"]) == ("Once", "mine")
    assert answer["echo"]["authorization"] is None
    assert [model["id"] for model in client.models()] == ["first", "second"]


def test_stream(server: dict[str, Any]) -> None:
    assert _text(list(Client(**server).chat(MESSAGES, stream=True))) == "Héllo 🙂"


def test_errors_carry_the_server_s_words(server: dict[str, Any]) -> None:
    for stream in (False, True):
        with pytest.raises(ClientError) as caught:
            list(Client(**server, model="bad").chat(MESSAGES, stream=stream))
        error = caught.value
        assert (error.status, error.code, error.param) == (400, "out_of_range", "temperature")
        assert str(error) == error.message == "temperature must be from 0 to 2"
    with pytest.raises(ClientError, match="status 502: <html>"):
        Client(**server, model="html").chat(MESSAGES)
    with pytest.raises(ClientError, match="loading"):
        Client(**server).health()


def test_error_in_mid_stream(server: dict[str, Any]) -> None:
    received = []
    with pytest.raises(ClientError, match="engine is gone"):
        for chunk in Client(**server, model="dies").chat(MESSAGES, stream=True):
            received.append(chunk)
    assert _text(received) == "Héllo 🙂"


def test_stream_that_is_cut_off(server: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="in the middle of an answer"):
        list(Client(**server, model="broken").chat(MESSAGES, stream=True))


def test_closing_a_stream_hangs_up(server: dict[str, Any]) -> None:
    chunks = Client(**server, model="endless").chat(MESSAGES, stream=True)
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert _Handler.hung_up.wait(5)


async def test_async_answers_streams_and_errors(server: dict[str, Any]) -> None:
    async with AsyncClient(**server) as client:
        assert (await client.chat(MESSAGES))["echo"]["model"] == "first"
        assert (await client.complete("Once", model="x"))["echo"]["prompt"] == "Once"
        assert [model["id"] for model in await client.models()] == ["first", "second"]
        chunks = [chunk async for chunk in await client.chat(MESSAGES, stream=True)]
        assert _text(chunks) == "Héllo 🙂"
        with pytest.raises(ClientError, match="temperature"):
            await client.chat(MESSAGES, model="bad")
        with pytest.raises(ClientError, match="engine is gone"):
            [chunk async for chunk in await client.chat(MESSAGES, stream=True, model="dies")]
        with pytest.raises(ClientError, match="in the middle of an answer"):
            [chunk async for chunk in await client.chat(MESSAGES, stream=True, model="broken")]
        with pytest.raises(ClientError, match="loading"):
            await client.health()


async def test_async_closing_a_stream_hangs_up(server: dict[str, Any]) -> None:
    async with AsyncClient(**server) as client:
        chunks = await client.chat(MESSAGES, stream=True, model="endless")
        await anext(chunks)
        await chunks.aclose()  # type: ignore[attr-defined]
        assert await asyncio.to_thread(_Handler.hung_up.wait, 5)


async def test_nobody_there(tmp_path: Path) -> None:
    path = tmp_path / "none.sock"
    with pytest.raises(ClientError, match=r"no engined server answers at unix:.*none\.sock.*engined serve"):
        Client(uds=path).models()
    async with AsyncClient(uds=path) as client:
        with pytest.raises(ClientError, match="no engined server answers"):
            await client.models()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ClientError, match=f"127.0.0.1:{port}: Connection refused"):
        Client(f"http://127.0.0.1:{port}").models()


def test_targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert str(Client().target) == f"unix:{tmp_path}/engined/engined.sock"
    assert str(Client("http://h:1/v1/").target) == "http://h:1"
    assert str(Client("https://h/proxy").target) == "https://h:443/proxy"
    with pytest.raises(ClientError, match="not both"):
        Client("http://h", uds="x")
    for url in ("h:8000", "ftp://h", os.devnull):
        with pytest.raises(ClientError, match="is not a URL like"):
            Client(url)
