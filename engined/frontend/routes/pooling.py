"""POST /v1/embeddings, /score and /rerank, the latter two under all the names that clients use. Frontend process."""

import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from msgspec import Struct

from engined.frontend.access.caller import CALLER
from engined.frontend.access.routes import route_path
from engined.frontend.admission.middleware import PLACE
from engined.frontend.api.operation import BODY_ERRORS, Operation
from engined.frontend.api.parser import BodyParser
from engined.frontend.api.pooling import (
    EmbeddingRequest,
    EmbeddingResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)
from engined.frontend.http_errors import struct_response
from engined.frontend.middleware import REQUEST_ID
from engined.frontend.request_log import RAN
from engined.frontend.routes.body import parse_json_body
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.pooling.embeddings import EmbeddingServing
from engined.frontend.serving.pooling.job import PoolingJob, attribute, run_pooling
from engined.frontend.serving.pooling.rerank import RerankServing
from engined.frontend.serving.pooling.score import ScoreServing

EMBEDDINGS = "/v1/embeddings"
SCORE_PATHS = ("/v1/score", "/score")
RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")

_DOCUMENTS = ["The capital of France is Paris.", "Bread is made of flour."]
_EMBEDDING_EXAMPLE = {"input": _DOCUMENTS}
_SCORE_EXAMPLE = {"text_1": "What is the capital of France?", "text_2": _DOCUMENTS}
_RERANK_EXAMPLE = {"query": "What is the capital of France?", "documents": _DOCUMENTS}


class PoolingRoutes:
    """The routes of models that answer with numbers."""

    def __init__(self, context: ServingContext) -> None:
        self._engine = context.engine
        self._embeddings = EmbeddingServing(context)
        self._score = ScoreServing(context)
        self._rerank = RerankServing(context)
        self._embedding_parser = BodyParser(EmbeddingRequest, context.server.unknown_fields)
        self._score_parser = BodyParser(ScoreRequest, context.server.unknown_fields)
        self._rerank_parser = BodyParser(RerankRequest, context.server.unknown_fields)

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_post(EMBEDDINGS, self.embeddings)
        for path in SCORE_PATHS:
            router.add_post(path, self.score)
        for path in RERANK_PATHS:
            router.add_post(path, self.rerank)

    def operations(self) -> tuple[Operation, ...]:
        """What the routes answer."""
        return (
            _operation(EMBEDDINGS, "Embed texts", EmbeddingRequest, EmbeddingResponse, _EMBEDDING_EXAMPLE),
            *(
                _operation(path, "Score pairs of texts", ScoreRequest, ScoreResponse, _SCORE_EXAMPLE)
                for path in SCORE_PATHS
            ),
            *(
                _operation(path, "Rank documents by a query", RerankRequest, RerankResponse, _RERANK_EXAMPLE)
                for path in RERANK_PATHS
            ),
        )

    async def embeddings(self, request: web.Request) -> web.Response:
        """Embed texts."""
        arrival_time = time.monotonic()
        body = await parse_json_body(request, self._embedding_parser)
        return await self._answer(request, await self._embeddings.prepare(body, arrival_time, request[REQUEST_ID]))

    async def score(self, request: web.Request) -> web.Response:
        """Score pairs of texts."""
        arrival_time = time.monotonic()
        body = await parse_json_body(request, self._score_parser)
        return await self._answer(request, await self._score.prepare(body, arrival_time, request[REQUEST_ID]))

    async def rerank(self, request: web.Request) -> web.Response:
        """Rank documents by a query."""
        arrival_time = time.monotonic()
        body = await parse_json_body(request, self._rerank_parser)
        return await self._answer(request, await self._rerank.prepare(body, arrival_time, request[REQUEST_ID]))

    async def _answer(self, request: web.Request, job: PoolingJob) -> web.Response:
        request[REQUEST_ID] = job.label
        job = attribute(job, route_path(request) or "", request[CALLER])
        request[PLACE].settle(job.requests)
        request[RAN] = True
        return struct_response(await run_pooling(self._engine, job))


def _operation(
    path: str, summary: str, request: type[Struct], response: type[Struct], example: Mapping[str, Any]
) -> Operation:
    return Operation(
        method="POST",
        path=path,
        summary=summary,
        tag="Pooling",
        request=request,
        example=example,
        response=response,
        error_statuses=BODY_ERRORS,
    )
