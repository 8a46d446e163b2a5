"""Puts every request that costs something through the gate. Frontend process; the innermost middleware of `app`."""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engined.frontend.access.caller import CALLER
from engined.frontend.access.routes import ROUTE_ACCESS, route_path
from engined.frontend.admission.allowance import Allowance
from engined.frontend.admission.gate import Gate, Place

PLACE = web.RequestKey("place", Place)
"""Given to every POST that needs the scope "inference", whether or not it reaches the engine."""
_ALLOWANCE = web.RequestKey("allowance", Allowance)


def admission_middleware(gate: Gate) -> Middleware:
    """Refuse what is too much; the place of what is not is given back when it has been answered, or has failed."""

    @web.middleware
    async def hold_place(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST" or ROUTE_ACCESS.get(route_path(request) or "") != "inference":
            return await handler(request)
        request[_ALLOWANCE] = gate.allowance(request[CALLER])
        request[PLACE] = place = gate.enter(request[_ALLOWANCE])
        try:
            return await handler(request)
        finally:
            place.leave()

    return hold_place


async def add_rate_limit_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: tell a caller with limits what is left of them, also when it is refused."""
    allowance = request.get(_ALLOWANCE)
    if allowance is not None:
        response.headers.extend(allowance.headers())
