"""One HTTP exchange over asyncio's transports, as cheap as it gets: while servers are measured, the client only notes
what came when. `answer` reads it afterwards. Runs in the process of `engined bench`."""

import asyncio
import time
from dataclasses import dataclass
from typing import Literal

from engined.bench.server import Server

_END_OF_STREAM = b"\ndata: [DONE]"
"""Inside an event a line break is escaped, so that no text looks like this."""
_FIRST_EVENT = b"\ndata:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What happened, in seconds of the clock `time.perf_counter`."""

    started: float
    """Before the connection was made."""
    reads: list[tuple[float, bytes]]
    """What the socket had, and when."""
    ended: float
    error: str | None = None
    """Why there is no whole answer."""


class _Connection(asyncio.Protocol):
    """Sends one request on a connection of its own, and gathers the answer."""

    def __init__(self, request: bytes, drops_at_first_event: bool) -> None:
        self.reads: list[tuple[float, bytes]] = []
        self.has_ended = asyncio.get_running_loop().create_future()
        self._request = request
        self._last = _FIRST_EVENT if drops_at_first_event else _END_OF_STREAM
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with what the socket had."""
        self.reads.append((time.perf_counter(), data))
        if self._last in data:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: the end of the answer, or a broken link."""
        if not self.has_ended.done():
            self.has_ended.set_result(exc)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)


async def exchange(server: Server, request: bytes, timeout: float, *, drops_at_first_event: bool = False) -> Exchange:
    """Send a request and take the whole answer, or hang up at the first event. Cancelled, it hangs up."""
    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    connection = _Connection(request, drops_at_first_event)
    error: str | None = None
    try:
        async with asyncio.timeout(timeout):
            if server.uds is not None:
                await loop.create_unix_connection(lambda: connection, server.uds)
            else:
                await loop.create_connection(lambda: connection, server.host, server.port)
            if (broken := await connection.has_ended) is not None:
                error = f"the connection broke: {broken}"
    except TimeoutError:
        error = f"no end after {timeout:g} s"
    except OSError as refused:
        error = refused.strerror or str(refused)
    finally:
        connection.close()
    return Exchange(started=started, reads=connection.reads, ended=time.perf_counter(), error=error)


def encode_request(server: Server, method: Literal["GET", "POST"], route: str, body: bytes = b"") -> bytes:
    """The bytes of one request, after whose answer the server closes the connection."""
    port = "" if server.port == 80 else f":{server.port}"
    key = "" if server.api_key is None else f"Authorization: Bearer {server.api_key}\r\n"
    head = (
        f"{method} {server.path}{route} HTTP/1.1\r\nHost: {server.host}{port}\r\n{key}"
        f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
