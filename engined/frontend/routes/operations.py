"""Probes, version, metrics, and the prefix cache reset. Frontend process."""

from dataclasses import replace

from aiohttp import web
from msgspec import Struct

from engined import __version__
from engined.frontend.api.operation import Operation
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.http_errors import json_response, retry_after
from engined.frontend.lifecycle import Lifecycle
from engined.frontend.metrics import MetricsPage
from engined.process.board import DaemonState

_TAG = "Operations"


class Status(Struct, kw_only=True):
    """What a probe or an operation says when all is well."""

    status: str


class Unavailable(Struct, kw_only=True):
    """Why requests are not served now."""

    status: str
    phase: str
    """Of the daemon: starting, serving, recovering or stopping."""
    reason: str


class Version(Struct, kw_only=True):
    """Of engined."""

    version: str


class OperationRoutes:
    """What operators and their tools ask."""

    def __init__(self, engine: AsyncLLM, lifecycle: Lifecycle, metrics_page: MetricsPage) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._metrics_page = metrics_page

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_get("/livez", self.livez)
        router.add_get("/readyz", self.readyz)
        router.add_get("/health", self.readyz)
        router.add_get("/startupz", self.startupz)
        router.add_get("/version", self.version)
        router.add_get("/metrics", self.metrics)
        router.add_post("/reset_prefix_cache", self.reset_prefix_cache)

    def operations(self) -> tuple[Operation, ...]:
        """What the routes answer. The probes need no key and are answered whatever the state of the server."""
        probe = Operation(method="GET", path="/livez", summary="Does this process answer?", tag=_TAG, response=Status)
        readiness = replace(probe, summary="Are requests served?", error=Unavailable, error_statuses=(503,))
        return (
            replace(probe, error_statuses=()),
            replace(readiness, path="/readyz"),
            replace(readiness, path="/health"),
            replace(readiness, path="/startupz", summary="Has the server been ready once?"),
            replace(probe, path="/version", summary="The version of engined", response=Version),
            replace(
                probe,
                path="/metrics",
                summary="Metrics for Prometheus",
                response=None,
                response_media_type="text/plain",
            ),
            replace(
                probe,
                method="POST",
                path="/reset_prefix_cache",
                summary="Forget all cached blocks that no request holds",
            ),
        )

    async def livez(self, request: web.Request) -> web.Response:
        """200 as long as this process answers."""
        return json_response({"status": "alive"})

    async def readyz(self, request: web.Request) -> web.Response:
        """200 if requests are served; else 503 with the reason."""
        reason = self._lifecycle.unready_reason
        if reason is None:
            return json_response({"status": "ready"})
        return _unavailable(reason, self._lifecycle.state)

    async def startupz(self, request: web.Request) -> web.Response:
        """200 once the server has been ready for the first time; until then 503 with what it is doing."""
        state = self._lifecycle.state
        if state.was_ready:
            return json_response({"status": "started"})
        return _unavailable(state.text or "starting", state)

    async def version(self, request: web.Request) -> web.Response:
        """The version of engined."""
        return json_response({"version": __version__})

    async def metrics(self, request: web.Request) -> web.Response:
        """The Prometheus page."""
        response = web.Response(body=self._metrics_page.render())
        response.headers["Content-Type"] = self._metrics_page.content_type
        return response

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """Forget all cached blocks that no request holds."""
        await self._engine.reset_prefix_cache()
        return json_response({"status": "reset"})


def _unavailable(reason: str, state: DaemonState) -> web.Response:
    body = {"status": "unavailable", "phase": state.phase, "reason": reason}
    return json_response(body, status=503, headers={"Retry-After": retry_after(state.retry_after)})
