"""Who may use a route: the middleware that puts the caller on a request, or refuses it. Frontend process.

Default deny: a route that `access.routes` does not list is closed to everybody.
"""

from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engined.errors import RequestError
from engined.frontend.access.caller import CALLER, EVERYBODY, NOBODY, Caller
from engined.frontend.access.key_ring import KeyRing
from engined.frontend.access.peers import is_local
from engined.frontend.access.routes import ROUTE_ACCESS, Access, route_path

CALLER_KEY = web.RequestKey("caller_key", bytes)
"""The key that came with a request, as a digest; empty where the server asks for none."""


def auth_middleware(keys: KeyRing) -> Middleware:
    """Refuse requests without a key (401) or with one that may not use the route (403)."""

    @web.middleware
    async def check_caller(request: web.Request, handler: Handler) -> web.StreamResponse:
        path = route_path(request)
        # An unknown route is told from a wrong method only to those who have a key.
        access = "any key" if path is None else ROUTE_ACCESS.get(path)
        caller = EVERYBODY if keys.is_open else keys.identify(sent_keys(request.headers))
        if access != "open":
            _check_access(request, caller, access)
        request[CALLER] = caller or NOBODY
        request[CALLER_KEY] = request[CALLER].key_id
        return await handler(request)

    return check_caller


def sent_keys(headers: Mapping[str, str]) -> list[str]:
    """What a request offers: the bearer token of OpenAI's clients, and the x-api-key of Anthropic's."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    keys = [token.strip()] if scheme.lower() == "bearer" else []
    if "x-api-key" in headers:
        keys.append(headers["x-api-key"].strip())
    return keys


def _check_access(request: web.Request, caller: Caller | None, access: Access | None) -> None:
    if caller is None:
        raise RequestError(
            "this server needs an API key: send it as Authorization: Bearer KEY, or as x-api-key: KEY",
            status=401,
            code="invalid_api_key",
        )
    if access is None:
        raise RequestError("this route is open to nobody", status=403, code="forbidden")
    if access != "any key" and access not in caller.scopes:
        raise RequestError(
            f"the key {caller.name} may not use this route, which needs one with the scope {access}",
            status=403,
            code="insufficient_scope",
        )
    if caller is EVERYBODY and access == "admin" and not is_local(request):
        raise RequestError(
            "a server without API keys takes this only from its own machine: connect there, or give the server keys",
            status=403,
            code="forbidden",
        )
