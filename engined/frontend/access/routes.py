"""What each route asks of a caller: the one table. Frontend process; read by the auth middleware.

A route that is not listed is refused, whoever asks; a test holds every registered route against the table.
"""

from collections.abc import Mapping
from typing import Literal

from aiohttp import web

from engined.config.api_keys import Scope

Access = Literal["open", "any key"] | Scope

PROBES = frozenset(("/livez", "/readyz", "/startupz", "/health"))

ROUTE_ACCESS: Mapping[str, Access] = {
    **dict.fromkeys(PROBES, "open"),
    # A fixed page that knows nothing of this server; a browser could not send a key for it.
    "/docs": "open",
    "/openapi.json": "any key",
    "/version": "any key",
    "/metrics": "metrics",
    "/reset_prefix_cache": "admin",
    "/admin/status": "admin",
    "/admin/requests": "admin",
    "/admin/requests/{request_id}": "admin",
    "/v1/models": "inference",
    "/v1/models/{model}": "inference",
    "/v1/chat/completions": "inference",
    "/v1/chat/completions/render": "inference",
    "/v1/completions": "inference",
    "/v1/messages": "inference",
    "/v1/messages/count_tokens": "inference",
    "/v1/responses": "inference",
    "/v1/responses/input_tokens": "inference",
    "/v1/responses/{response_id}": "inference",
    "/v1/responses/{response_id}/input_items": "inference",
    "/v1/responses/{response_id}/cancel": "inference",
    "/v1/embeddings": "inference",
    "/v1/score": "inference",
    "/score": "inference",
    "/v1/rerank": "inference",
    "/v2/rerank": "inference",
    "/rerank": "inference",
    "/v1/files": "inference",
    "/v1/files/{file_id}": "inference",
    "/v1/files/{file_id}/content": "inference",
    "/v1/batches": "inference",
    "/v1/batches/{batch_id}": "inference",
    "/v1/batches/{batch_id}/cancel": "inference",
    "/tokenize": "inference",
    "/v1/tokenize": "inference",
    "/detokenize": "inference",
    "/v1/detokenize": "inference",
}
"""By the path as it was registered, for all of its methods."""


def route_path(request: web.Request) -> str | None:
    """The path of the route that was found, as it was registered; None if there is no such route or method.

    What counts is the route, not how its path was spelled.
    """
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical
