"""Hostile bytes on a TCP socket, as no HTTP client would send them (H16 to H31): one table, one outcome a row.

What comes too slowly or in floods (H19, H22 to H26) is in test_connections and test_slow_clients.

Every answer has the one error shape and says nothing of what was sent; the server answers others as if nothing were.
"""

import asyncio
import json
import re
from dataclasses import dataclass, field

import pytest

from engined.config.schema import Config, ServerConfig
from tests.frontend.conftest import RunningFrontend, StartFrontend

SECONDS = 10.0
MARK = "XSENTBYUSX"
"""In what is sent, so that it can be looked for in what comes back."""
KEY = "sk-" + "k" * 40


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is sent, and the statuses that may come back; () means that the connection is closed without an answer."""

    name: str
    data: bytes
    statuses: tuple[int, ...]
    config: ServerConfig = field(default_factory=ServerConfig)
    closes: bool = True
    """Whether the server must close the connection, which is what keeps bytes that follow from being a request."""


def head(start: str, *lines: str, host: str | None = "127.0.0.1") -> bytes:
    """A request's head."""
    all_lines = [start, *([f"Host: {host}"] if host is not None else []), *lines, "", ""]
    return "\r\n".join(all_lines).encode("latin-1")


def post(*lines: str, body: bytes = b"", path: str = "/v1/completions") -> bytes:
    """A POST of JSON with these headers; nothing is added for the body."""
    return head(f"POST {path} HTTP/1.1", "Content-Type: application/json", *lines) + body


def sized(body: bytes, *lines: str, path: str = "/v1/completions") -> bytes:
    """A POST with an honest length, on a connection that is closed after it."""
    return post(f"Content-Length: {len(body)}", "Connection: close", *lines, body=body, path=path)


GOOD = b'{"prompt": "x", "max_tokens": 1}'
CHUNKED = "Transfer-Encoding: chunked"
SMUGGLED = head("GET /metrics HTTP/1.1")
SMALL = ServerConfig(max_body_size=2000)
WITH_KEY = ServerConfig(api_key=(KEY,))


ATTEMPTS = [
    # H16: sizes
    Attempt("H16-body-above-limit", sized(b'{"prompt": "' + b"x" * 3000 + b'"}'), (413,), SMALL),
    Attempt("H16-length-above-limit-no-body", post("Content-Length: 99999999"), (413,)),
    Attempt("H16-length-of-20-digits", post("Content-Length: 18446744073709551616"), (400, 413)),
    Attempt("H16-length-negative", post("Content-Length: -1"), (400,)),
    Attempt("H16-length-plus", post("Content-Length: +2", body=b"{}"), (400,)),
    Attempt("H16-length-hex", post("Content-Length: 0x2", body=b"{}"), (400,)),
    Attempt("H16-length-underscore", post("Content-Length: 1_0", body=b"{}" * 5), (400,)),
    Attempt("H16-length-too-short", post("Content-Length: 5", body=GOOD), (400,)),
    Attempt("H16-chunks-above-limit", post(CHUNKED, body=b"400\r\n" + b"x" * 1024 + b"\r\n" + b"400\r\n" + b"x" * 1024
            + b"\r\n400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n"), (413,), SMALL, closes=False),
    # H17, H18: media types
    *(Attempt(f"H17-encoding-{name}", sized(GOOD, f"Content-Encoding: {name}"), (415,))
      for name in ("gzip", "deflate", "br", "zstd", "gzip, gzip")),
    *(Attempt(f"H18-type-{name}", head("POST /v1/completions HTTP/1.1", f"Content-Type: {name}", "Connection: close",
              f"Content-Length: {len(GOOD)}") + GOOD, (415,)) for name in ("text/plain", "application/x-json", "")),
    Attempt("H18-no-type", head("POST /v1/completions HTTP/1.1", "Connection: close", f"Content-Length: {len(GOOD)}")
            + GOOD, (415,)),
    # H20: two readers of one request
    Attempt("H20-length-and-chunked", post("Content-Length: 4", CHUNKED, body=b"0\r\n\r\n" + SMUGGLED), (400,)),
    Attempt("H20-chunked-and-length", post(CHUNKED, "Content-Length: 4", body=b"0\r\n\r\n" + SMUGGLED), (400,)),
    Attempt("H20-two-lengths", post("Content-Length: 2", "Content-Length: 30", body=b"{}" + SMUGGLED), (400,)),
    Attempt("H20-two-equal-lengths", post("Content-Length: 2", "Content-Length: 2", body=b"{}" + SMUGGLED), (400,)),
    Attempt("H20-length-list", post("Content-Length: 2, 2", body=b"{}" + SMUGGLED), (400,)),
    Attempt("H20-space-before-colon", post("Content-Length : 2", body=b"{}"), (400,)),
    Attempt("H20-folded-line", post("Content-Length: 2\r\n 3", body=b"{}"), (400,)),
    Attempt("H20-folded-header", post("X-Folded: a\r\n\tb", "Content-Length: 2", body=b"{}"), (400,)),
    Attempt("H20-bare-lf", b"GET /livez HTTP/1.1\nHost: 127.0.0.1\n\n", (400,)),
    Attempt("H20-bare-cr", b"GET /livez HTTP/1.1\rHost: 127.0.0.1\r\r\n\r\n", (400,)),
    Attempt("H20-chunked-xchunked", post("Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), (400,)),
    Attempt("H20-identity-chunked", post("Transfer-Encoding: identity, chunked", body=b"0\r\n\r\n"), (400, 501),
            closes=False),
    Attempt("H20-chunked-twice", post(CHUNKED, CHUNKED, body=b"0\r\n\r\n"), (400,)),
    Attempt("H20-chunked-then-more", post("Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"), (400, 415, 501)),
    Attempt("H20-chunk-size-not-hex", post(CHUNKED, body=b"zz\r\n{}\r\n0\r\n\r\n"), (400, 408)),
    Attempt("H20-chunk-size-negative", post(CHUNKED, body=b"-2\r\n{}\r\n0\r\n\r\n"), (400, 408)),
    Attempt("H20-chunk-size-huge", post(CHUNKED, body=b"f" * 32 + b"\r\n{}\r\n"), (400, 408, 413)),
    Attempt("H20-chunk-without-end", post(CHUNKED, body=b"2\r\n{}XX0\r\n\r\n"), (400, 408)),
    Attempt("H20-chunked-http10", head("POST /v1/completions HTTP/1.0", "Content-Type: application/json", CHUNKED)
            + b"0\r\n\r\n", (400,)),
    Attempt("H20-nul-in-name", post("X\0Y: z", "Content-Length: 2", body=b"{}"), (400,)),
    Attempt("H20-nul-in-value", post("X: y\0z", "Content-Length: 2", body=b"{}"), (400,)),
    Attempt("H20-no-colon", post(MARK, "Content-Length: 2", body=b"{}"), (400,)),
    Attempt("H20-empty-name", post(": x", "Content-Length: 2", body=b"{}"), (400,)),
    # H21: too much head
    Attempt("H21-101-headers", post(*(f"X-{n}: y" for n in range(150)), "Content-Length: 2", body=b"{}"), (400, 431)),
    Attempt("H21-9000-byte-header", post("X: " + "y" * 9000, "Content-Length: 2", body=b"{}"), (400, 431)),
    Attempt("H21-9000-byte-name", post("X" * 9000 + ": y", "Content-Length: 2", body=b"{}"), (400, 431)),
    Attempt("H21-9000-byte-path", head("GET /" + "a" * 9000 + " HTTP/1.1"), (400, 414, 431)),
    Attempt("H21-endless-trailers", post(CHUNKED, body=b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 20000), (400, 408, 431)),
    # H27: methods
    Attempt("H27-method-odd", head("BREW /v1/models HTTP/1.1", "Connection: close"), (400, 405)),
    Attempt("H27-method-lower-case", head("get /livez HTTP/1.1", "Connection: close"), (400, 405)),
    Attempt("H27-method-long", head("M" * 3000 + " /livez HTTP/1.1", "Connection: close"), (400, 405)),
    Attempt("H27-connect", head("CONNECT 127.0.0.1:22 HTTP/1.1", "Connection: close"), (400, 404, 405)),
    Attempt("H27-upgrade", head("GET /livez HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket"), (200, 400),
            closes=False),
    Attempt("H27-http2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)),
    Attempt("H27-http09", b"GET /livez\r\n\r\n", (400,)),
    Attempt("H27-tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 32 + b"\r\n\r\n", (400,)),
    # H28: hosts and paths
    *(Attempt(f"H28-host-{name}", head("GET /v1/models HTTP/1.1", "Connection: close", host=name), (400, 403, 421))
      for name in ("evil.example", "127.0.0.1/evil", "evil.example:80", "127.0.0.1@evil.example", "a b", "", "[::1",
                   "127.0.0.1:99999999")),
    Attempt("H28-no-host", head("GET /v1/models HTTP/1.1", "Connection: close", host=None), (400,)),
    Attempt("H28-two-hosts", head("GET /v1/models HTTP/1.1", "Host: evil.example", "Connection: close"), (400,)),
    *(Attempt(f"H28-path-{path}", head(f"GET {path} HTTP/1.1", "Connection: close"), (400, 401, 404), WITH_KEY)
      for path in ("http://evil.example/v1/models", "//v1/models", "/v1//models", "/%2e%2e/v1/models",
                   "/livez/../v1/models", "/livez/%2e%2e/v1/models", "/v1/models;x", "/livez;/v1/models",
                   "/v1%2fmodels", "/V1/models", "/v1/models/", "*", "/v1/models%00", "/livez/x")),
    # H29: web pages
    *(Attempt(f"H29-origin-{origin}", head("GET /v1/models HTTP/1.1", f"Origin: {origin}", "Connection: close"), (403,))
      for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", "file://", "http://localhost:1")),
    Attempt("H29-rebound-name", head("GET /v1/models HTTP/1.1", "Origin: http://evil.example:8000", "Connection: close",
            host="evil.example:8000"), (400, 403, 421)),
    # H30: keys
    *(Attempt(f"H30-key-{name}", head("GET /v1/models HTTP/1.1", f"{header}: {value}", "Connection: close"), (401,),
              WITH_KEY)
      for name, header, value in (
          ("wrong", "Authorization", "Bearer sk-" + "j" * 40),
          ("prefix", "Authorization", f"Bearer {KEY[:-1]}"),
          ("longer", "Authorization", f"Bearer {KEY}k"),
          ("7-KB", "Authorization", "Bearer " + "k" * 7000),
          ("not-ASCII", "Authorization", "Bearer k\xfck\xff"),
          ("basic", "Authorization", "Basic " + "a2V5Og=="),
          ("bare", "Authorization", KEY),
          ("empty", "Authorization", "Bearer "),
          ("x-api-key", "x-api-key", "wrong"),
      )),
    Attempt("H30-key-10-KB", head("GET /v1/models HTTP/1.1", "Authorization: Bearer " + "k" * 10240), (400, 401, 431),
            WITH_KEY),
    Attempt("H30-no-key", head("GET /v1/models HTTP/1.1", "Connection: close"), (401,), WITH_KEY),
    # H31: ids
    *(Attempt(f"H31-id-{name}", head("GET /livez HTTP/1.1", f"X-Request-Id: {value}", "Connection: close"), (200,))
      for name, value in (("url", f"http://169.254.169.254/{MARK}"), ("long", MARK * 200), ("odd", f"{MARK} ; x"))),
    Attempt("H31-id-crlf", head("GET /livez HTTP/1.1", f"X-Request-Id: a\r\n{MARK}: b", "Connection: close"), (200,)),
]  # fmt: skip


async def exchange(frontend: RunningFrontend, data: bytes, seconds: float = SECONDS) -> tuple[bytes, bool]:
    """Send, and read what comes; whether the server closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
    answer, is_closed = b"", False
    try:
        writer.write(data)
        async with asyncio.timeout(seconds):
            while part := await reader.read(65536):
                answer += part
        is_closed = True
    except ConnectionError:
        is_closed = True
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()
    return answer, is_closed


CONFIGS = list(dict.fromkeys(attempt.config for attempt in ATTEMPTS))


@pytest.mark.parametrize("config", CONFIGS, ids=["default", "small bodies", "with a key"])
async def test_every_attempt(
    start_frontend: StartFrontend, monkeypatch: pytest.MonkeyPatch, config: ServerConfig
) -> None:
    """One server takes them all, one after the other."""
    monkeypatch.setattr("engined.frontend.routes.body.BODY_SECONDS", 0.3)
    frontend = await start_frontend(config=Config(server=config), tcp=True)
    problems = {}
    for attempt in ATTEMPTS:
        if attempt.config == config:
            answer, is_closed = await exchange(frontend, attempt.data, SECONDS if attempt.closes else 0.5)
            if problem := find_problem(attempt, answer, is_closed):
                problems[attempt.name] = problem
            assert (await frontend.get("/livez"))[0] == 200, attempt.name
    assert not problems, json.dumps(problems, indent=1)
    assert frontend.engine.added == [], "nothing of it reached the engine"


def find_problem(attempt: Attempt, answer: bytes, is_closed: bool) -> str | None:
    """What is wrong with an answer; None if it is as it must be."""
    first, _, rest = answer.partition(b"\r\n\r\n")
    status_line, *lines = first.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if not status_line or int(status_line.split()[1]) not in attempt.statuses:
        return f"status line {status_line!r}, not {attempt.statuses}"
    if attempt.closes and not is_closed:
        return "the connection stays open"
    if not re.fullmatch(r"req_[0-9a-f]{32}|a", headers["x-request-id"]):
        return f"request id {headers['x-request-id']!r}"
    if MARK in answer.decode("latin-1"):
        return "the answer repeats what was sent"
    if len(rest) != int(headers["content-length"]):
        return "more than one answer"
    if status_line.split()[1] == "200":
        return None
    error = json.loads(rest)["error"]
    if set(error) != {"message", "type", "param", "code"}:
        return f"error {error}"
    return "the error tells of our code" if re.search(r"0x[0-9a-f]{6,}|Traceback|\.py", error["message"]) else None


async def test_a_request_that_was_smuggled_is_never_answered(start_frontend: StartFrontend) -> None:
    """H20: two requests, of which the second is the body of the first for one reader and a request for another."""
    frontend = await start_frontend(tcp=True)
    for data in (
        post("Content-Length: 44", CHUNKED, body=b"0\r\n\r\n" + SMUGGLED),
        post("Content-Length: 2", "Content-Length: 60", body=b"{}" + SMUGGLED),
    ):
        answer, is_closed = await exchange(frontend, data)
        assert answer.count(b"HTTP/1.1 ") == 1 and is_closed
