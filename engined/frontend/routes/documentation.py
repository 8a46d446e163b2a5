"""GET /openapi.json and GET /docs. Frontend process; both are made once."""

import asyncio
from collections.abc import Iterable
from importlib.resources import files

import orjson
from aiohttp import web

from engined.frontend.api.openapi import build_openapi
from engined.frontend.api.operation import READ_ERRORS, Operation

# The page needs nothing but itself and this server, and shows what the server says as text only.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "connect-src 'self'",
        "style-src 'unsafe-inline'",
        "script-src 'unsafe-inline'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


class DocumentationRoutes:
    """The description of all routes, for machines and for people."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        """`operations` are those of all other routes."""
        self._operations = (*operations, *self.operations())
        self._document: bytes | None = None
        self._page = files("engined.frontend").joinpath("static/docs.html").read_bytes()

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_get("/openapi.json", self.openapi)
        router.add_get("/docs", self.docs)

    def operations(self) -> tuple[Operation, ...]:
        """What the routes answer."""
        return (
            Operation(
                method="GET",
                path="/openapi.json",
                summary="This description",
                tag="Operations",
                response=dict,
            ),
            Operation(
                method="GET",
                path="/docs",
                summary="A page that lists the routes and tries them; needs no internet and no key",
                tag="Operations",
                response_media_type="text/html",
                error_statuses=tuple(status for status in READ_ERRORS if status != 401),
            ),
        )

    async def openapi(self, request: web.Request) -> web.Response:
        """The OpenAPI document."""
        if self._document is None:
            # It takes a tenth of a second, which neither the start nor a running stream should wait for.
            self._document = orjson.dumps(await asyncio.to_thread(build_openapi, self._operations))
        return web.Response(body=self._document, content_type="application/json")

    async def docs(self, request: web.Request) -> web.Response:
        """The page."""
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        return web.Response(body=self._page, content_type="text/html", charset="utf-8", headers=headers)
