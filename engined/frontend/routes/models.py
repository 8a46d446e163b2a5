"""GET /v1/models and /v1/models/{id}. Frontend process."""

from typing import Any

from aiohttp import web

from engined.frontend.http_errors import json_response
from engined.frontend.serving.context import ServingContext


class ModelRoutes:
    """The names under which the one model is served."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes. An id may contain slashes."""
        router.add_get("/v1/models", self.list_models)
        router.add_get("/v1/models/{model:.+}", self.get_model)

    async def list_models(self, request: web.Request) -> web.Response:
        """All names."""
        cards = [self._card(name) for name in self._context.model_names]
        return json_response({"object": "list", "data": cards})

    async def get_model(self, request: web.Request) -> web.Response:
        """One name; 404 model_not_found for any other."""
        name = request.match_info["model"]
        self._context.check_model(name)
        return json_response(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        ready = self._context.engine.ready
        return {
            "id": name,
            "object": "model",
            "created": self._context.created,
            "owned_by": "engined",
            "root": self._context.model_names[0],
            "parent": None,
            "max_model_len": None if ready is None else ready.max_model_len,
        }
