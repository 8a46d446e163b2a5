"""Answers lines of batches in process, by the same steps as the HTTP routes: parse, prepare, collect. Frontend process.

All of it happens on an engine that marks its requests as background.
"""

import dataclasses
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from engined.batch.request_line import RequestLine
from engined.batch.result_line import LineAnswer
from engined.errors import EnginedError, RequestError
from engined.frontend.access.caller import Caller
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.completions import CompletionRequest
from engined.frontend.api.messages import MessagesRequest
from engined.frontend.api.parser import BodyParser
from engined.frontend.api.pooling import EmbeddingRequest, RerankRequest, ScoreRequest
from engined.frontend.api.responses import ResponsesRequest
from engined.frontend.http_errors import error_object, error_status
from engined.frontend.message_errors import message_error, speaks_messages
from engined.frontend.serving.chat import ChatServing
from engined.frontend.serving.completions import CompletionServing
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation, attribute, collect_whole
from engined.frontend.serving.messages.serving import MessagesServing
from engined.frontend.serving.pooling.embeddings import EmbeddingServing
from engined.frontend.serving.pooling.job import PoolingJob, run_pooling
from engined.frontend.serving.pooling.job import attribute as attribute_job
from engined.frontend.serving.pooling.rerank import RerankServing
from engined.frontend.serving.pooling.score import ScoreServing
from engined.frontend.serving.responses.serving import Caller as Asker
from engined.frontend.serving.responses.serving import ResponsesServing
from engined.frontend.serving.responses.store import ResponseStore

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Struct)
Prepared = TypeVar("Prepared")
Prepare = Callable[[T, float, str], Awaitable[Prepared]]
"""From a body, its time of arrival and its request id to something that can be run."""
Run = Callable[[Prepared, str, Caller], Awaitable[Any]]
"""From that, the url of the line and its caller, to the JSON of the answer."""
Handler = Callable[[RequestLine, Caller, str], Awaitable[Any]]
"""From a line, its caller and a request id to the JSON of the answer. Raises RequestError."""


class BatchAnswers:
    """Answers lines for the urls that the model can serve."""

    def __init__(self, context: ServingContext) -> None:
        background = dataclasses.replace(context, engine=context.engine.in_background())
        pools = context.model_info.runner == "pooling"
        self._handlers = _pooling_handlers(background) if pools else _generation_handlers(background)
        self._max_body_size = context.server.max_body_size

    @property
    def urls(self) -> tuple[str, ...]:
        """What a line may ask for."""
        return tuple(self._handlers)

    async def answer(self, caller: Caller, line: RequestLine) -> LineAnswer:
        """Answer one line of the caller's, if need be with an error."""
        request_id = f"req_{uuid.uuid4().hex}"
        try:
            if len(line.body) > self._max_body_size:
                raise RequestError("the body is larger than --max-body-size allows", status=413, code="too_large")
            body = await self._handlers[line.url](line, caller, request_id)
        except EnginedError as error:
            return _failed(line.url, error, request_id)
        except Exception as error:
            # The outermost boundary of a request: one that fails must not take the others with it.
            logger.exception("%s: internal error", request_id)
            return _failed(line.url, error, request_id)
        return LineAnswer(status=200, request_id=request_id, body=body)


def _failed(url: str, error: Exception, request_id: str) -> LineAnswer:
    body = msgspec.to_builtins(message_error(error, request_id)) if speaks_messages(url) else error_object(error)
    return LineAnswer(status=error_status(error), request_id=request_id, body=body)


def _generation_handlers(context: ServingContext) -> Mapping[str, Handler]:
    async def run(generation: Generation, url: str, caller: Caller) -> dict[str, Any]:
        return await collect_whole(context.engine, attribute(generation, url, caller))

    unknown_fields = context.server.unknown_fields
    return {
        "/v1/chat/completions": _handler(
            BodyParser(ChatCompletionRequest, unknown_fields), ChatServing(context).prepare, run
        ),
        "/v1/completions": _handler(
            BodyParser(CompletionRequest, unknown_fields), CompletionServing(context).prepare, run
        ),
        "/v1/responses": _handler(BodyParser(ResponsesRequest, unknown_fields), _prepare_response(context), run),
        "/v1/messages": _handler(BodyParser(MessagesRequest, unknown_fields), MessagesServing(context).prepare, run),
    }


def _pooling_handlers(context: ServingContext) -> Mapping[str, Handler]:
    async def run(job: PoolingJob, url: str, caller: Caller) -> Struct:
        return await run_pooling(context.engine, attribute_job(job, url, caller))

    score = _handler(BodyParser(ScoreRequest), ScoreServing(context).prepare, run)
    rerank = _handler(BodyParser(RerankRequest), RerankServing(context).prepare, run)
    return {
        "/v1/embeddings": _handler(BodyParser(EmbeddingRequest), EmbeddingServing(context).prepare, run),
        "/v1/score": score,
        "/score": score,
        "/v1/rerank": rerank,
        "/v2/rerank": rerank,
        "/rerank": rerank,
    }


def _handler(parser: BodyParser[T], prepare: Prepare[T, Prepared], run: Run[Prepared]) -> Handler:
    async def handle(line: RequestLine, caller: Caller, request_id: str) -> Any:
        request = parser.parse(bytes(line.body))
        return await run(await prepare(request, time.monotonic(), request_id), line.url, caller)

    return handle


def _prepare_response(context: ServingContext) -> Prepare[ResponsesRequest, Generation]:
    """Responses of a batch are in its output; 50,000 of them would drive all others out of the store."""
    serving = ResponsesServing(context, ResponseStore(0, 0))

    async def prepare(request: ResponsesRequest, arrival_time: float, request_id: str) -> Generation:
        for name, is_given in (
            ("store", bool(request.store)),
            ("previous_response_id", request.previous_response_id is not None),
        ):
            if is_given:
                raise RequestError(
                    f"{name}: a batch has no store of responses; leave it out", param=name, code="unsupported_parameter"
                )
        return await serving.prepare(request, Asker(owner=b"", label=request_id, arrival_time=arrival_time))

    return prepare
