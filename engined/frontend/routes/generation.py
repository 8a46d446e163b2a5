"""POST /v1/chat/completions and /v1/completions. Frontend process."""

import time

from aiohttp import web

from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.chat_object import ChatCompletion, ChatCompletionChunk
from engined.frontend.api.completion_object import Completion, CompletionChunk
from engined.frontend.api.completions import CompletionRequest
from engined.frontend.api.error_body import ErrorResponse
from engined.frontend.api.operation import BODY_ERRORS, Operation
from engined.frontend.api.parser import BodyParser
from engined.frontend.middleware import REQUEST_ID
from engined.frontend.routes.answer import answer_generation
from engined.frontend.routes.body import parse_json_body
from engined.frontend.serving.chat import ChatServing
from engined.frontend.serving.completions import CompletionServing
from engined.frontend.serving.context import ServingContext


class GenerationRoutes:
    """The two endpoints that generate text."""

    def __init__(self, context: ServingContext) -> None:
        self._engine = context.engine
        self._chat = ChatServing(context)
        self._completions = CompletionServing(context)
        self._chat_parser = BodyParser(ChatCompletionRequest, context.server.unknown_fields)
        self._completion_parser = BodyParser(CompletionRequest, context.server.unknown_fields)

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_post("/v1/chat/completions", self.chat_completions)
        router.add_post("/v1/completions", self.completions)

    def operations(self) -> tuple[Operation, ...]:
        """What the routes take and answer."""
        question = {"role": "user", "content": "What is the capital of France?"}
        return (
            Operation(
                method="POST",
                path="/v1/chat/completions",
                summary="Answer a conversation",
                tag="Generation",
                request=ChatCompletionRequest,
                example={"messages": [question], "max_tokens": 64, "stream": True},
                response=ChatCompletion,
                events=(ChatCompletionChunk, ErrorResponse),
                last_event="[DONE]",
                error_statuses=BODY_ERRORS,
            ),
            Operation(
                method="POST",
                path="/v1/completions",
                summary="Continue one or several texts",
                tag="Generation",
                request=CompletionRequest,
                example={"prompt": "Once upon a time", "max_tokens": 32},
                response=Completion,
                events=(CompletionChunk, ErrorResponse),
                last_event="[DONE]",
                error_statuses=BODY_ERRORS,
            ),
        )

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """Answer one conversation."""
        arrival_time = time.monotonic()
        body = await parse_json_body(request, self._chat_parser)
        generation = await self._chat.prepare(body, arrival_time, request[REQUEST_ID])
        return await answer_generation(request, self._engine, generation, is_stream=bool(body.stream))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Continue one or several prompts."""
        arrival_time = time.monotonic()
        body = await parse_json_body(request, self._completion_parser)
        generation = await self._completions.prepare(body, arrival_time, request[REQUEST_ID])
        return await answer_generation(request, self._engine, generation, is_stream=bool(body.stream))
