"""One client's connection. Frontend process; `server` makes one for each that is accepted.

What is not even HTTP never becomes a request that a route or a middleware could answer; it is answered here.
"""

import logging
import uuid

from aiohttp import web

from engined.errors import RequestError
from engined.frontend.http_errors import error_response

logger = logging.getLogger(__name__)


class HttpConnection(web.RequestHandler):
    """aiohttp's connection, with errors in the one shape instead of plain text."""

    __slots__ = ()

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
