"""Errors in the one shape that clients know: {"error": {"message", "type", "param", "code"}}. Frontend process.

Nothing of the inside gets out: an error that we did not design becomes a fixed sentence.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from engined.errors import EngineDeadError, RequestError

RETRY_AFTER_SECONDS = "5"
_HTTP_CODES = {
    404: ("not_found", "there is no such route"),
    405: ("method_not_allowed", "this route has no such method"),
    413: ("request_too_large", "the body is larger than --max-body-size allows"),
}


def error_object(error: Exception) -> dict[str, Any]:
    """The body for `error`."""
    if isinstance(error, RequestError):
        return _object(str(error), error.type, error.param, error.code)
    if isinstance(error, EngineDeadError):
        return _object(str(error), "server_error", None, "engine_unavailable")
    return _object("internal server error", "server_error", None, "internal_error")


def error_response(error: Exception, headers: Mapping[str, str] | None = None) -> web.Response:
    """The whole answer to `error`, with the headers that tell clients whether to try again."""
    status = 500
    if isinstance(error, RequestError):
        status = error.status
    elif isinstance(error, EngineDeadError):
        status = 503
    all_headers = dict(headers or {})
    if status in (429, 503):
        all_headers.setdefault("Retry-After", RETRY_AFTER_SECONDS)
    return json_response(error_object(error), status=status, headers=all_headers)


def from_http_exception(error: web.HTTPException) -> RequestError:
    """What aiohttp raises for routes, methods and body sizes, as our own error."""
    code, message = _HTTP_CODES.get(error.status, ("invalid_request", error.reason))
    return RequestError(message, status=error.status, code=code)


def json_response(data: dict[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(data), status=status, headers=headers, content_type="application/json")


def _object(message: str, type: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}
