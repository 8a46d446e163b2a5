"""API keys. Frontend process; a middleware that refuses every route but the open ones, if there are keys."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engined.errors import RequestError

CALLER_KEY = web.RequestKey("caller_key", bytes)
"""The key that came with a request, as a digest; empty where the server asks for none."""
OPEN_ROUTES = frozenset(("/livez", "/readyz", "/startupz", "/health", "/docs"))
"""/docs is a fixed page that knows nothing of this server; a browser could not send a key for it."""


class ApiKeys:
    """The keys that are accepted, kept as digests only."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def identify(self, sent: Sequence[str]) -> bytes | None:
        """The one of the `sent` keys that is known, as a digest, in a time that tells nothing about the others."""
        matches = [(digest, hmac.compare_digest(digest, key)) for digest in map(_digest, sent) for key in self._digests]
        return next((digest for digest, is_known in matches if is_known), None)


def auth_middleware(keys: ApiKeys) -> Middleware:
    """Refuse requests without a key. What counts is the route that was resolved, not how its path is spelled."""

    @web.middleware
    async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        is_open = resource is not None and resource.canonical in OPEN_ROUTES
        caller_key = keys.identify(sent_keys(request.headers))
        if keys and not is_open and caller_key is None:
            raise RequestError(
                "this server needs an API key: send it as Authorization: Bearer KEY, or as x-api-key: KEY",
                status=401,
                code="invalid_api_key",
            )
        request[CALLER_KEY] = caller_key or b""
        return await handler(request)

    return check_key


def sent_keys(headers: Mapping[str, str]) -> list[str]:
    """What a request offers: the bearer token of OpenAI's clients, and the x-api-key of Anthropic's."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    keys = [token.strip()] if scheme.lower() == "bearer" else []
    if "x-api-key" in headers:
        keys.append(headers["x-api-key"].strip())
    return keys


def _digest(key: str) -> bytes:
    # Headers come decoded with surrogates for bytes that are not UTF-8.
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()
