"""The middleware that counts every HTTP request, and logs those that never reached the engine. Frontend process.

What ran in the engine has its line from the serving layer, see `serving.outcome`. Of the others, a request that asked
for something wrong is logged at info; one that was turned away whatever it asked, and all that is well, at debug: a
flood of them must not become a flood of lines, and the counter has them all.
"""

import logging
import time

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engined.frontend.access.caller import CALLER, EVERYBODY
from engined.frontend.access.routes import route_path
from engined.frontend.metrics import Metrics
from engined.frontend.middleware import FAILURE, REQUEST_ID
from engined.frontend.serving.outcome import CLIENT_GONE_STATUS, describe_error
from engined.log.formats import printable

logger = logging.getLogger(__name__)

RAN = web.RequestKey("ran", bool)
"""On requests that were handed to the engine."""
UNKNOWN_ROUTE = "other"
_TURNED_AWAY = frozenset((401, 403, 408, 421, 429, 503, 529))


def request_log_middleware(metrics: Metrics) -> Middleware:
    """`metrics` keeps the count."""

    @web.middleware
    async def log_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.monotonic()
        status = CLIENT_GONE_STATUS
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            endpoint = route_path(request) or UNKNOWN_ROUTE
            metrics.count_http_request(endpoint, status)
            if RAN not in request:
                _log(request, endpoint, status, time.monotonic() - started)

    return log_request


def _log(request: web.Request, endpoint: str, status: int, seconds: float) -> None:
    level = logging.DEBUG
    if status >= 400 and status not in _TURNED_AWAY:
        level = logging.INFO if status < 500 else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    label, key = request[REQUEST_ID], request.get(CALLER, EVERYBODY).name
    error = describe_error(request[FAILURE]) if FAILURE in request else None
    who = " ".join(part for part in (f"({label})", key, endpoint) if part)
    text = printable(f"{who} {status}{f': {error}' if error else ''}; total {seconds:.3f} s")
    facts = {"label": label, "key": key, "endpoint": endpoint, "status": status, "error": error}
    logger.log(level, "%s", text, extra={"request": {**facts, "total_seconds": seconds}})
