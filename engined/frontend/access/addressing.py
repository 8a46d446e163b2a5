"""Whether a request was meant for this server: its Host, its path, and the web page behind it. Frontend process.

Against DNS rebinding, where a page makes its own name point to 127.0.0.1: a browser then sends that name as Host. An IP
address as Host is always right, since no name was looked up. Against pages that send requests to a server they should
not know: a browser names the page as Origin, which must be this server itself or one that was allowed.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import unquote

from aiohttp import HttpVersion10, web
from aiohttp.typedefs import Handler, Middleware

from engined.config.schema import ServerConfig
from engined.errors import RequestError
from engined.frontend.access.peers import is_unix
from engined.frontend.access.routes import PROBES, route_path

ANY = "*"
PREFLIGHT_SECONDS = 600
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_.-]+))(?::[0-9]{1,5})?")
_ASKED_METHOD = "Access-Control-Request-Method"
_CORS_METHODS = "GET, POST, DELETE"


class Addressing:
    """What the server may be called, and which web pages may use it."""

    def __init__(self, server: ServerConfig) -> None:
        own_name = socket.gethostname()
        names = ("localhost", own_name, own_name.partition(".")[0], server.host, *server.allowed_host)
        self._hosts = frozenset(name.lower().rstrip(".") for name in names)
        self._origins = frozenset(server.allowed_origin)

    def check(self, request: web.Request) -> None:
        """Raise RequestError if the request was meant for somebody else, or was sent by a page that is not allowed."""
        if request.version < HttpVersion10:
            raise RequestError("HTTP/0.9 is not spoken here", code="invalid_http")
        _check_path(request.raw_path)
        # Load balancers ask a probe under whatever name they have, and it answers nothing worth a name.
        if not is_unix(request) and route_path(request) not in PROBES:
            self._check_host(request.headers.getall("Host", ()))
        for origin in request.headers.getall("Origin", ()):
            if not _is_own(origin, request) and not self._allows_origin(origin):
                raise RequestError(
                    "web pages of this origin may not use this server; --allowed-origin ORIGIN lets them",
                    status=403,
                    code="origin_not_allowed",
                )

    async def add_cors_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Signal handler: let the pages of allowed origins read the answer, errors included."""
        if self._origins:
            response.headers.add("Vary", "Origin")
        origin = request.headers.get("Origin")
        if origin is not None and self._allows_origin(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "*"

    def _allows_origin(self, origin: str) -> bool:
        return origin in self._origins or ANY in self._origins

    def _check_host(self, values: Iterable[str]) -> None:
        values = tuple(values)
        match = _HOST.fullmatch(values[0]) if len(values) == 1 else None
        if match is None:
            raise RequestError("the request needs one Host header with a name or an IP address", code="invalid_host")
        name = match["name"] or ""
        if not (_is_address(match["ipv6"] or name) or name.lower().rstrip(".") in self._hosts or ANY in self._hosts):
            raise RequestError(
                "this server does not answer to the name in the Host header: use localhost or its IP address; "
                "--allowed-host NAME adds a name",
                code="host_not_allowed",
            )


def addressing_middleware(addressing: Addressing) -> Middleware:
    """Refuse what was not meant for this server, and answer the questions that browsers ask beforehand (CORS)."""

    @web.middleware
    async def check_addressing(request: web.Request, handler: Handler) -> web.StreamResponse:
        addressing.check(request)
        if request.method == "OPTIONS" and "Origin" in request.headers and _ASKED_METHOD in request.headers:
            return _preflight(request)
        return await handler(request)

    return check_addressing


def _preflight(request: web.Request) -> web.Response:
    asked = request.headers.get("Access-Control-Request-Headers", "")
    headers = {
        "Access-Control-Allow-Methods": _CORS_METHODS,
        "Access-Control-Allow-Headers": asked,
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
    }
    return web.Response(status=204, headers=headers)


def _check_path(raw_path: str) -> None:
    """Refuse spellings on which two readers of a path could disagree: proxies, routers, and whoever reads the log."""
    path = raw_path.partition("?")[0]
    segments = path.split("/")[1:]
    is_plain = path.startswith("/") and "" not in segments[:-1]
    if not is_plain or any(unquote(segment) in (".", "..") for segment in segments):
        raise RequestError(
            "the path must begin with one slash, without a server before it, and hold no empty, . or .. part",
            code="invalid_path",
        )


def _is_own(origin: str, request: web.Request) -> bool:
    """Whether the page came from this server. Not by scheme: a proxy may speak TLS for us."""
    return origin.partition("://")[2].lower() == request.headers.get("Host", "").lower() != ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
