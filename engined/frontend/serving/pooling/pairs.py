"""Scores of pairs of texts, the common ground of /score and /rerank. Frontend process.

A cross-encoder reads both texts as one sequence and gives the score itself; with any other pooling model each text is
embedded, and the score is the cosine similarity.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from engined.errors import RequestError
from engined.frontend.api.pooling import PoolingFields
from engined.frontend.rendering.pooling_input import PoolingInput, PoolingPrompt
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.pooling.checks import check_fields, check_num_tokens, check_texts
from engined.frontend.serving.pooling.job import Vector, count_tokens
from engined.protocol.pooling import PoolingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """One side of the pairs, and the field that it came from."""

    values: Sequence[str]
    param: str
    is_list: bool = True

    def prompts(self) -> list[PoolingPrompt]:
        """Each text by itself."""
        return [PoolingPrompt(content=text, param=self.name(index)) for index, text in enumerate(self.values)]

    def name(self, index: int) -> str:
        """The place of one text in the body."""
        return f"{self.param}[{index}]" if self.is_list else self.param


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringPlan:
    """The sequences that give the scores."""

    inputs: list[PoolingInput]
    pooling: PoolingParams
    num_first: int
    is_cross_encoder: bool

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return count_tokens(self.inputs)

    def scores(self, results: Sequence[Vector]) -> list[float]:
        """One score for each pair, from the result of each sequence."""
        if self.is_cross_encoder:
            return [result[0] for result in results]
        first, second = results[: self.num_first], results[self.num_first :]
        return [cosine(first[index % self.num_first], vector) for index, vector in enumerate(second)]


class PairScorer:
    """Plans the scoring of pairs for the model that is served."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def plan(self, request: PoolingFields, first: Texts, second: Texts, route: str) -> ScoringPlan:
        """Check and tokenize the pairs: one first text with every second one, or as many of both, in order.

        Raises RequestError for everything that is the client's fault.
        """
        context = self._context
        extras = check_fields(request, context, route)
        num_labels = context.model_info.num_labels
        if num_labels > 1:
            raise context.wrong_route(route)
        ready = context.engine.require_ready()
        for texts in (first, second):
            check_texts(texts.values, texts.param, is_list=texts.is_list)
        num_first, num_second = len(first.values), len(second.values)
        if num_first not in (1, num_second):
            raise RequestError(
                f"{first.param} has {num_first} texts and {second.param} {num_second}: send one of the first, or as "
                "many of both",
                param=first.param,
            )
        is_cross_encoder = num_labels == 1
        prompts = _pairs(first, second) if is_cross_encoder else first.prompts() + second.prompts()
        inputs = await context.renderer.render_pooling(prompts, extras, ready.max_model_len)
        plan = ScoringPlan(
            inputs=inputs,
            pooling=PoolingParams(normalize=request.use_activation is not False),
            num_first=num_first,
            is_cross_encoder=is_cross_encoder,
        )
        check_num_tokens(plan.num_tokens, second.param)
        return plan


def _pairs(first: Texts, second: Texts) -> list[PoolingPrompt]:
    return [
        PoolingPrompt(content=(first.values[index % len(first.values)], text), param=second.name(index))
        for index, text in enumerate(second.values)
    ]


def cosine(first: Vector, second: Vector) -> float:
    """Cosine of the angle between two vectors; 0 if one has no length."""
    norm = math.hypot(*first) * math.hypot(*second)
    return sum(map(operator.mul, first, second)) / norm if norm else 0.0
