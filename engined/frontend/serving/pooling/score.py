"""POST /score: from the body to a `PoolingJob`. Frontend process; called by the route."""

import time
from collections.abc import Sequence
from functools import partial

from engined.errors import RequestError
from engined.frontend.api.pooling import PoolingUsage, ScoreData, ScoreRequest, ScoreResponse
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.pooling.job import PoolingJob, Vector, build_requests, new_response_id
from engined.frontend.serving.pooling.pairs import PairScorer, ScoringPlan, Texts

FIRST_NAMES = ("text_1", "queries", "data_1")
SECOND_NAMES = ("text_2", "documents", "items", "data_2")


class ScoreServing:
    """Turns score requests into jobs."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context
        self._scorer = PairScorer(context)

    async def prepare(self, request: ScoreRequest, arrival_time: float, label: str) -> PoolingJob:
        """Check and tokenize one request. Raises RequestError for everything that is the client's fault."""
        first, second = _find_texts(request, FIRST_NAMES), _find_texts(request, SECOND_NAMES)
        plan = await self._scorer.plan(request, first, second, "/v1/score")
        response_id = new_response_id("score")
        return PoolingJob(
            response_id=response_id,
            label=request.request_id or label,
            requests=build_requests(response_id, plan.inputs, plan.pooling, request, arrival_time),
            respond=partial(self._respond, response_id, plan),
            arrival_time=arrival_time,
        )

    def _respond(self, response_id: str, plan: ScoringPlan, results: Sequence[Vector]) -> ScoreResponse:
        return ScoreResponse(
            id=response_id,
            created=int(time.time()),
            model=self._context.model_names[0],
            data=[ScoreData(index=index, score=score) for index, score in enumerate(plan.scores(results))],
            usage=PoolingUsage(prompt_tokens=plan.num_tokens, total_tokens=plan.num_tokens),
        )


def _find_texts(request: ScoreRequest, names: tuple[str, ...]) -> Texts:
    """The texts under the one name that was used. Raises RequestError if it is none, or more than one."""
    given = [name for name in names if getattr(request, name) is not None]
    if not given:
        raise RequestError(f"{names[0]} is required", param=names[0], code="missing_required_parameter")
    if len(given) > 1:
        raise RequestError(f"{given[0]} and {given[1]} mean the same: send one of them", param=given[1])
    value: str | list[str] = getattr(request, given[0])
    if isinstance(value, str):
        return Texts(values=[value], param=given[0], is_list=False)
    return Texts(values=value, param=given[0])
