"""Bearer keys. Frontend process; a middleware that refuses every route but the probes, if there are keys."""

import hashlib
import hmac
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engined.errors import RequestError

OPEN_ROUTES = frozenset(("/livez", "/readyz", "/health"))


class ApiKeys:
    """The keys that are accepted, kept as digests only."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accepts(self, authorization: str) -> bool:
        """Whether the value of an Authorization header holds one of the keys, in a time that tells nothing."""
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def auth_middleware(keys: ApiKeys) -> Middleware:
    """Refuse requests without a key. What counts is the route that was resolved, not how its path is spelled."""

    @web.middleware
    async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        is_open = resource is not None and resource.canonical in OPEN_ROUTES
        if keys and not is_open and not keys.accepts(request.headers.get("Authorization", "")):
            raise RequestError(
                "this server needs an API key: send it as Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
            )
        return await handler(request)

    return check_key


def _digest(key: str) -> bytes:
    # Headers come decoded with surrogates for bytes that are not UTF-8.
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()
