"""POST /rerank: from the body to a `PoolingJob`. Frontend process; called by the route."""

from collections.abc import Sequence
from functools import partial

from engined.errors import RequestError
from engined.frontend.api.pooling import RerankDocument, RerankRequest, RerankResponse, RerankResult, RerankUsage
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.pooling.job import PoolingJob, Vector, build_requests, new_response_id
from engined.frontend.serving.pooling.pairs import PairScorer, ScoringPlan, Texts


class RerankServing:
    """Turns rerank requests into jobs."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context
        self._scorer = PairScorer(context)

    async def prepare(self, request: RerankRequest, arrival_time: float, label: str) -> PoolingJob:
        """Check and tokenize one request. Raises RequestError for everything that is the client's fault."""
        if request.top_n is not None and request.top_n < 1:
            raise RequestError("top_n must be at least 1: leave it out for all documents", param="top_n")
        texts = [document if isinstance(document, str) else document.text for document in request.documents]
        query = Texts(values=[request.query], param="query", is_list=False)
        plan = await self._scorer.plan(request, query, Texts(values=texts, param="documents"), "/v1/rerank")
        response_id = new_response_id("rerank")
        returned_texts = texts if request.return_documents is not False else None
        return PoolingJob(
            response_id=response_id,
            label=request.request_id or label,
            requests=build_requests(response_id, plan.inputs, plan.pooling, request, arrival_time),
            respond=partial(self._respond, response_id, plan, returned_texts, request.top_n),
            arrival_time=arrival_time,
        )

    def _respond(
        self,
        response_id: str,
        plan: ScoringPlan,
        texts: Sequence[str] | None,
        top_n: int | None,
        results: Sequence[Vector],
    ) -> RerankResponse:
        scores = plan.scores(results)
        best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
        return RerankResponse(
            id=response_id,
            model=self._context.model_names[0],
            usage=RerankUsage(total_tokens=plan.num_tokens),
            results=[
                RerankResult(
                    index=index,
                    document=None if texts is None else RerankDocument(text=texts[index]),
                    relevance_score=scores[index],
                )
                for index in best_first[:top_n]
            ],
        )
