"""Errors below /v1/messages, in the shape that Anthropic's clients know. Frontend process; used by the middleware for
whole answers and by `serving.messages` for streams.

Statuses are those of the other routes, but 503 is 529 here: for these clients that is the server which is too busy.
"""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from engined.frontend.api.message_object import MessageError, MessageErrorObject, MessageErrorType
from engined.frontend.http_errors import error_headers, error_object, error_status

MESSAGES_PATH = "/v1/messages"
OVERLOADED_STATUS = 529
_TYPES: dict[int, MessageErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def speaks_messages(path: str) -> bool:
    """Whether a request to `path` comes from a client of Anthropic's API; also if there is no such route."""
    return path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")


def message_error(error: Exception, request_id: str | None = None) -> MessageError:
    """The body for `error`."""
    status = error_status(error)
    default: MessageErrorType = "invalid_request_error" if status < 500 else "api_error"
    message = error_object(error)["error"]["message"]
    return MessageError(
        error=MessageErrorObject(type=_TYPES.get(status, default), message=message), request_id=request_id
    )


def message_error_response(error: Exception, request_id: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """The whole answer to `error`."""
    status = error_status(error)
    return web.Response(
        body=msgspec.json.encode(message_error(error, request_id)),
        status=OVERLOADED_STATUS if status == 503 else status,
        headers=error_headers(error, headers),
        content_type="application/json",
    )
