"""POST /v1/embeddings: from the body to a `PoolingJob`. Frontend process; called by the route."""

import base64
import struct
import time
from collections.abc import Sequence
from functools import partial
from typing import cast

from engined.errors import RequestError
from engined.frontend.api.pooling import MAX_ITEMS, EmbeddingData, EmbeddingRequest, EmbeddingResponse, PoolingUsage
from engined.frontend.rendering.pooling_input import PoolingPrompt
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.pooling.checks import check_fields, check_num_tokens, check_texts
from engined.frontend.serving.pooling.job import PoolingJob, Vector, build_requests, count_tokens, new_response_id
from engined.protocol.pooling import PoolingParams

ROUTE = "/v1/embeddings"


class EmbeddingServing:
    """Turns embedding requests into jobs."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def prepare(self, request: EmbeddingRequest, arrival_time: float, label: str) -> PoolingJob:
        """Check and tokenize one request. Raises RequestError for everything that is the client's fault."""
        context = self._context
        extras = check_fields(request, context, ROUTE)
        if context.model_info.num_labels > 0:
            raise context.wrong_route(ROUTE)
        ready = context.engine.require_ready()
        pooling = PoolingParams(
            dimensions=self._resolve_dimensions(request.dimensions),
            normalize=request.use_activation is not False,
        )
        prompts = parse_input(request.input)
        inputs = await context.renderer.render_pooling(prompts, extras, ready.max_model_len)
        num_tokens = count_tokens(inputs)
        check_num_tokens(num_tokens, "input")
        response_id = new_response_id("embd")
        return PoolingJob(
            response_id=response_id,
            label=request.request_id or label,
            requests=build_requests(response_id, inputs, pooling, request, arrival_time),
            respond=partial(self._respond, response_id, num_tokens, as_base64=request.encoding_format == "base64"),
            arrival_time=arrival_time,
        )

    def _resolve_dimensions(self, dimensions: int | None) -> int | None:
        """Leading values to keep. A model that was not trained for it would answer with vectors that mean little."""
        info = self._context.model_info
        if dimensions is None or dimensions == info.hidden_size:
            return None
        if not 1 <= dimensions <= info.hidden_size:
            raise RequestError(f"dimensions must be from 1 to {info.hidden_size}", param="dimensions")
        if not info.is_matryoshka:
            raise RequestError(
                f"dimensions: the config.json of the model does not say that its embeddings of {info.hidden_size} "
                'values may be shortened; leave it out, or write "is_matryoshka": true there',
                param="dimensions",
                code="unsupported_parameter",
            )
        if info.matryoshka_dimensions and dimensions not in info.matryoshka_dimensions:
            known = ", ".join(map(str, info.matryoshka_dimensions))
            raise RequestError(f"dimensions must be one of {known} for this model", param="dimensions")
        return dimensions

    def _respond(
        self, response_id: str, num_tokens: int, vectors: Sequence[Vector], *, as_base64: bool
    ) -> EmbeddingResponse:
        return EmbeddingResponse(
            id=response_id,
            created=int(time.time()),
            model=self._context.model_names[0],
            data=[
                EmbeddingData(index=index, embedding=to_base64(vector) if as_base64 else vector)
                for index, vector in enumerate(vectors)
            ],
            usage=PoolingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )


def parse_input(value: str | list[int | str | list[int]]) -> list[PoolingPrompt]:
    """The four forms of `input` as single prompts. Raises RequestError."""
    if isinstance(value, str):
        check_texts([value], "input", is_list=False)
        return [PoolingPrompt(content=value, param="input")]
    kinds = {type(item) for item in value}
    if len(kinds) > 1:
        raise RequestError("input mixes texts and token ids: send one kind", param="input")
    if kinds == {int}:
        return [PoolingPrompt(content=cast("list[int]", value), param="input")]
    if kinds == {str}:
        check_texts(cast("list[str]", value), "input", is_list=True)
    if not 1 <= len(value) <= MAX_ITEMS:
        raise RequestError(f"input must hold 1 to {MAX_ITEMS} texts, not {len(value)}", param="input")
    items = cast("list[str | list[int]]", value)
    return [PoolingPrompt(content=item, param=f"input[{index}]") for index, item in enumerate(items)]


def to_base64(vector: Vector) -> str:
    """Base64 of the values as little-endian float32."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
