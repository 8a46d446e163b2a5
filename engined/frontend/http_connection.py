"""One client's connection. Frontend process; `server` makes one for each that is accepted.

What is not even HTTP never becomes a request that a route or a middleware could answer; it is answered here, and so is
a client that holds the connection without using it.
"""

import asyncio
import logging
import socket
import uuid
from typing import Any

from aiohttp import web
from aiohttp.streams import StreamReader

from engined.errors import RequestError
from engined.frontend.connection_limits import ConnectionPlace
from engined.frontend.connection_timers import ConnectionTimes, HeadDeadline, StallWatch
from engined.frontend.http_errors import error_bytes, error_response

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 64 << 10
"""What the kernel takes from us before the client has made room for it; by itself it would take megabytes."""


class HttpConnection(web.RequestHandler):
    """aiohttp's connection, with errors in the one shape instead of plain text, and an end to all waiting."""

    __slots__ = ("_place", "_times", "_head_deadline", "_is_head_begun", "_body", "_stall_watch")

    def __init__(self, manager: web.Server, times: ConnectionTimes, place: ConnectionPlace, **settings: Any) -> None:
        """`place` is given back when the connection is lost; `settings` are aiohttp's."""
        super().__init__(manager, keepalive_timeout=times.idle, **settings)
        self._place = place
        self._times = times
        self._head_deadline = HeadDeadline(times.head, self._end_late_head)
        self._is_head_begun = False
        self._body: StreamReader | None = None
        self._stall_watch: StallWatch | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        # Whatever the kernel does not take at once pauses the writer: what waits here is one piece, and is watched.
        transport.set_write_buffer_limits(high=1, low=0)
        connection = transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        self._stall_watch = StallWatch(self._times.stall, transport)
        self._head_deadline.start()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give everything back."""
        self._head_deadline.stop()
        if self._stall_watch is not None:
            self._stall_watch.stop()
        super().connection_lost(exc)
        self._place.leave()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and see whether it is a head that will have to be completed."""
        num_requests, is_body = self._request_count, self._body is not None and not self._body.is_eof()
        super().data_received(data)
        if self._request_count > num_requests:
            self._head_deadline.stop()
            self._is_head_begun = False
            self._body = self._messages[-1][1]
        elif data and not is_body:
            self._is_head_begun = True
            self._head_deadline.start()

    def pause_writing(self) -> None:
        """The client does not take what was written."""
        super().pause_writing()
        if self._stall_watch is not None:
            self._stall_watch.start()

    def resume_writing(self) -> None:
        """It has taken everything."""
        super().resume_writing()
        if self._stall_watch is not None:
            self._stall_watch.stop()

    def _end_late_head(self) -> None:
        if self._waiter is None or self._waiter.done():
            # Another request of this connection is being answered, which must not suffer.
            self._head_deadline.start()
            return
        if self._is_head_begun and self.transport is not None:
            text = f"the head of the request did not come in {self._times.head:.0f} seconds"
            self.transport.write(error_bytes(RequestError(text, status=408, code="request_timeout")))
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the HTTP parser refused, or what escaped from a handler, and close the connection.

        `message` quotes what the client sent and is not repeated.
        """
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, an error can no longer be sent")
        if status < 500:
            logger.debug("refused what is not valid HTTP", exc_info=exc)
            text = "this is not a valid HTTP/1.1 request, or its headers are too large"
            error = RequestError(text, status=status, code="invalid_http")
        else:
            logger.error("internal error outside of a request", exc_info=exc)
            error = RequestError("internal server error", status=status, type="server_error", code="internal_error")
        response = error_response(error, {"x-request-id": f"req_{uuid.uuid4().hex}"})
        response.force_close()
        return response
