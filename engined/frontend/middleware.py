"""What every request passes through, outermost first: request id, error shape, drain. Frontend process."""

import asyncio
import logging
import re
import uuid
from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engined.errors import EnginedError, RequestError
from engined.frontend.http_errors import error_response, from_http_exception
from engined.frontend.lifecycle import Lifecycle
from engined.frontend.message_errors import message_error_response, speaks_messages

logger = logging.getLogger(__name__)

REQUEST_ID = web.RequestKey("request_id", str)
FAILURE = web.RequestKey("failure", Exception)
"""What was answered with an error, for the log."""
_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
PROBES = frozenset(("/livez", "/readyz", "/startupz", "/health", "/metrics", "/version"))


@web.middleware
async def request_id_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Take the client's X-Request-Id as a label if it is harmless, else make one. It is never a key to anything."""
    given = request.headers.get("X-Request-Id", "")
    request[REQUEST_ID] = given if _LABEL.fullmatch(given) is not None else f"req_{uuid.uuid4().hex}"
    return await handler(request)


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: every response names its request."""
    if REQUEST_ID in request:
        response.headers["x-request-id"] = request[REQUEST_ID]
        if speaks_messages(request.path):
            response.headers["request-id"] = request[REQUEST_ID]


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an answer of the shape that the client knows."""
    try:
        return await handler(request)
    except asyncio.CancelledError:
        raise
    except web.HTTPException as error:
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return _answer(request, from_http_exception(error), headers)
    except EnginedError as error:
        return _answer(request, error)
    except ConnectionError:
        raise  # the client went away while it was being answered
    except Exception as error:
        # The outermost boundary of a request: one that fails must not take the others with it.
        logger.exception("%s: internal error", request[REQUEST_ID])
        return _answer(request, error)


def drain_middleware(lifecycle: Lifecycle) -> Middleware:
    """While the server stops, refuse new work and close the connections that bring it."""

    @web.middleware
    async def refuse_while_draining(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        is_probe = resource is not None and resource.canonical in PROBES
        if lifecycle.is_draining and not is_probe:
            error = RequestError("the server is shutting down", status=503, type="server_error", code="shutting_down")
            response = _answer(request, error, {"Connection": "close"})
            response.force_close()
            return response
        return await handler(request)

    return refuse_while_draining


def _answer(request: web.Request, error: Exception, headers: Mapping[str, str] | None = None) -> web.Response:
    """An error in the shape of the API that the path belongs to."""
    request[FAILURE] = error
    if speaks_messages(request.path):
        return message_error_response(error, request[REQUEST_ID], headers)
    return error_response(error, headers)
