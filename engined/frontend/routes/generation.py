"""POST /v1/chat/completions and /v1/completions. Frontend process."""

import time

from aiohttp import web

from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.completions import CompletionRequest
from engined.frontend.api.parser import BodyParser
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.http_errors import json_response
from engined.frontend.middleware import REQUEST_ID
from engined.frontend.routes.body import read_json_body
from engined.frontend.serving.chat import ChatServing
from engined.frontend.serving.completions import CompletionServing
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation, collect_whole
from engined.frontend.serving.streaming import stream_generation


class GenerationRoutes:
    """The two endpoints that generate text."""

    def __init__(self, context: ServingContext) -> None:
        self._engine = context.engine
        self._chat = ChatServing(context)
        self._completions = CompletionServing(context)
        self._chat_parser = BodyParser(ChatCompletionRequest)
        self._completion_parser = BodyParser(CompletionRequest)

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_post("/v1/chat/completions", self.chat_completions)
        router.add_post("/v1/completions", self.completions)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """Answer one conversation."""
        arrival_time = time.monotonic()
        body = self._chat_parser.parse(await read_json_body(request))
        generation = await self._chat.prepare(body, arrival_time, request[REQUEST_ID])
        return await _answer(request, self._engine, generation, is_stream=bool(body.stream))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Continue one or several prompts."""
        arrival_time = time.monotonic()
        body = self._completion_parser.parse(await read_json_body(request))
        generation = await self._completions.prepare(body, arrival_time, request[REQUEST_ID])
        return await _answer(request, self._engine, generation, is_stream=bool(body.stream))


async def _answer(
    request: web.Request, engine: AsyncLLM, generation: Generation, *, is_stream: bool
) -> web.StreamResponse:
    request[REQUEST_ID] = generation.label
    if is_stream:
        return await stream_generation(request, engine, generation)
    return json_response(await collect_whole(engine, generation))
