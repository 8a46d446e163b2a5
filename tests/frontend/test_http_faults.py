"""What is wrong before a field is read: no HTTP, no route, no such method, no key, no JSON. One error shape for all."""

import asyncio
import json
import re
from typing import Any

import pytest

from engined.config.schema import Config, ServerConfig
from tests.frontend.conftest import RunningFrontend, StartFrontend

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
OPEN_ROUTES = ("/livez", "/readyz", "/startupz", "/health", "/docs")
"""The probes, and a page that holds nothing of this server: it asks for a key itself."""


def check_shape(body: Any) -> dict[str, Any]:
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    return error


async def send(frontend: RunningFrontend, data: bytes) -> tuple[bytes, bytes]:
    """Send raw bytes; head and body of what comes until the server closes the connection."""
    reader, writer = await asyncio.open_unix_connection(frontend.path)
    writer.write(data)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


NOT_HTTP = [
    b"garbage\r\n\r\n",
    b"ODD-METHOD /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    POST + b"Content-Length: -5\r\n\r\n{}",
    POST + b"Folded: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    POST + b"Transfer-Encoding: chunked\r\n\r\nnope\r\n{}\r\n",
    POST + b"X: y\r\n" * 200 + b"Content-Length: 2\r\n\r\n{}",
    POST + b"X: " + b"y" * 20_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.mark.parametrize("data", NOT_HTTP, ids=range(len(NOT_HTTP)))
async def test_what_is_not_http(start_frontend: StartFrontend, data: bytes) -> None:
    frontend = await start_frontend()
    head, body = await send(frontend, data)
    lines = head.decode().lower().split("\r\n")
    assert lines[0].split()[1] in ("400", "431"), head
    assert "content-type: application/json" in lines[1] + "".join(lines)
    assert any(line.startswith("x-request-id: req_") for line in lines)
    error = check_shape(json.loads(body))
    assert error["type"] == "invalid_request_error"
    assert (await frontend.get("/livez"))[0] == 200


async def test_a_lying_content_length_ends_with_the_connection(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    _, writer = await asyncio.open_unix_connection(frontend.path)
    writer.write(POST + b'Content-Length: 50\r\n\r\n{"prompt": "x"}')
    await asyncio.sleep(0.05)
    writer.close()
    await asyncio.sleep(0.05)
    assert frontend.engine.added == []
    assert (await frontend.get("/livez"))[0] == 200


@pytest.mark.parametrize("rest", [b"nope\r\n\r\n", b""])
async def test_a_body_that_does_not_come(
    start_frontend: StartFrontend, monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    """A bad chunk, or silence, after the handler has begun to read."""
    monkeypatch.setattr("engined.frontend.routes.body.BODY_SECONDS", 0.3)
    frontend = await start_frontend()
    reader, writer = await asyncio.open_unix_connection(frontend.path)
    writer.write(POST + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"pro\r\n')
    await asyncio.sleep(0.1)
    writer.write(rest)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    assert b" 408 " in answer.split(b"\r\n")[0], answer
    assert check_shape(json.loads(answer.partition(b"\r\n\r\n")[2]))["type"] == "invalid_request_error"


async def test_every_route_with_every_method_without_a_key(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(api_key=("secret",))))
    paths = {re.sub(r"\{[^}]*\}", "x", resource.canonical) for resource in frontend.app.router.resources()}
    assert len(paths) > 8
    for path in sorted(paths) + ["/nowhere", "//v1/models", "/v1/../v1/models"]:
        for method in METHODS:
            async with frontend.client.request(method, f"http://engined{path}") as response:
                is_open = path in OPEN_ROUTES
                allowed = (200, 401, 405) if is_open else (400,) if path.startswith("//") else (401,)
                assert response.status in allowed, (method, path, response.status)
                if response.status >= 400 and not path.startswith("/v1/messages"):
                    check_shape(await response.json())


async def test_every_route_names_its_methods(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    methods: dict[str, set[str]] = {}
    for resource in frontend.app.router.resources():
        path = re.sub(r"\{[^}]*\}", "x", resource.canonical)
        methods.setdefault(path, set()).update(route.method for route in resource)
    for path, known in methods.items():
        # Any last part of a path could also be an id: of a response, a file, a batch.
        ids = {"GET", "DELETE"} if path.count("/") > 2 else set()
        for method in set(METHODS) - known - ids:
            async with frontend.client.request(method, f"http://engined{path}") as response:
                assert response.status == 405, (method, path)
                assert set(response.headers["Allow"].split(",")) >= known - {"HEAD"}
                if not path.startswith("/v1/messages"):
                    assert check_shape(await response.json())["code"] == "method_not_allowed"
    status, body = await frontend.get("/v1/nowhere")
    assert (status, check_shape(body)["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json; charset=utf-16"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "br"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "zstd"}, 415),
        ({"Content-Type": "application/json; charset=UTF-8"}, 200),
    ],
)
async def test_media_types(start_frontend: StartFrontend, headers: dict[str, str], status: int) -> None:
    frontend = await start_frontend()
    body = b'{"prompt": "x", "max_tokens": 1}'
    async with frontend.client.post("http://engined/v1/completions", data=body, headers=headers) as response:
        assert response.status == status
        if status != 200:
            assert check_shape(await response.json())["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "given", ["", "a b", "x" * 65, "x" * 7000, "http://evil/x", "ünlaut", "a\x1b[31m", "../../etc/passwd", "a,b"]
)
async def test_odd_request_ids_are_not_taken(start_frontend: StartFrontend, given: str) -> None:
    """Nor is an id a key to anything: two requests of one id run side by side."""
    frontend = await start_frontend()
    head, _ = await send(
        frontend,
        b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: " + given.encode() + b"\r\n\r\n",
    )
    [line] = [line for line in head.decode().split("\r\n") if line.lower().startswith("x-request-id")]
    assert re.fullmatch(r"x-request-id: req_[0-9a-f]{32}", line.lower())
    bodies = [{"prompt": "x", "max_tokens": 2, "request_id": "same"}] * 2
    answers = await asyncio.gather(*(frontend.post("/v1/completions", body) for body in bodies))
    assert [status for status, _ in answers] == [200, 200]
    assert answers[0][1]["id"] != answers[1][1]["id"]
