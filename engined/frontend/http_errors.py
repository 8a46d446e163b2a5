"""Errors in the one shape that clients know: {"error": {"message", "type", "param", "code"}}. Frontend process.

Nothing of the inside gets out: an error that we did not design becomes a fixed sentence.
"""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import orjson
from aiohttp import web
from msgspec import Struct

from engined.errors import EngineDeadError, RequestError

RETRY_AFTER_SECONDS = 5.0
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


def error_status(error: Exception) -> int:
    """The HTTP status for `error`."""
    if isinstance(error, RequestError):
        return error.status
    return 503 if isinstance(error, EngineDeadError) else 500


def error_code(error: BaseException) -> str:
    """The machine-readable string for `error`, one of a fixed set."""
    if isinstance(error, RequestError):
        return error.code or error.type
    return "engine_unavailable" if isinstance(error, EngineDeadError) else "internal_error"


def error_headers(error: Exception, headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """`headers`, and those that tell clients whether to try again."""
    all_headers = dict(headers or {})
    if error_status(error) in (429, 503):
        known = error.retry_after if isinstance(error, RequestError) else None
        all_headers.setdefault("Retry-After", retry_after(RETRY_AFTER_SECONDS if known is None else known))
    if error_status(error) == 401:
        all_headers.setdefault("WWW-Authenticate", "Bearer")
    if error_status(error) == 408:
        # OpenAI's clients would send the request again, although its deadline has passed.
        all_headers.setdefault("x-should-retry", "false")
    return all_headers


def retry_after(seconds: float) -> str:
    """The value of a Retry-After header: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))


def error_response(error: Exception, headers: Mapping[str, str] | None = None) -> web.Response:
    """The whole answer to `error`."""
    return json_response(error_object(error), status=error_status(error), headers=error_headers(error, headers))


def error_bytes(error: Exception) -> bytes:
    """The whole answer to `error` as it goes over the wire, for a connection without a request; it must be closed."""
    body = orjson.dumps(error_object(error))
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **error_headers(error),
    }
    status = HTTPStatus(error_status(error))
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def from_http_exception(error: web.HTTPException) -> RequestError:
    """What aiohttp raises for routes, methods and body sizes, as our own error."""
    code, message = _HTTP_CODES.get(error.status, ("invalid_request", error.reason))
    return RequestError(message, status=error.status, code=code)


def json_response(data: dict[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(data), status=status, headers=headers, content_type="application/json")


def struct_response(data: Struct) -> web.Response:
    """A JSON answer whose shape is a struct, the one that /openapi.json shows."""
    return web.Response(body=msgspec.json.encode(data), content_type="application/json")


def _object(message: str, type: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}
