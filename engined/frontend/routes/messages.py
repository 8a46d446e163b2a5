"""POST /v1/messages and /v1/messages/count_tokens, in the shape of Anthropic's API. Frontend process."""

import time

from aiohttp import web

from engined.frontend.api.message_object import MESSAGE_EVENTS, Message, MessageError, TokenCount
from engined.frontend.api.messages import CountTokensRequest, MessagesRequest
from engined.frontend.api.operation import Operation
from engined.frontend.api.parser import BodyParser
from engined.frontend.http_errors import struct_response
from engined.frontend.message_errors import OVERLOADED_STATUS
from engined.frontend.middleware import REQUEST_ID
from engined.frontend.routes.answer import answer_generation
from engined.frontend.routes.body import parse_json_body
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.messages.serving import MessagesServing

_ERRORS = (400, 401, 403, 404, 410, 413, 415, 500, OVERLOADED_STATUS)
_EXAMPLE = {"max_tokens": 64, "messages": [{"role": "user", "content": "What is the capital of France?"}]}


class MessagesRoutes:
    """What clients of Anthropic's API call. Their errors have a shape of their own; see `message_errors`."""

    def __init__(self, context: ServingContext) -> None:
        self._engine = context.engine
        self._serving = MessagesServing(context)
        self._parser = BodyParser(MessagesRequest, context.server.unknown_fields)
        self._count_parser = BodyParser(CountTokensRequest, context.server.unknown_fields)

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_post("/v1/messages", self.messages)
        router.add_post("/v1/messages/count_tokens", self.count_tokens)

    def operations(self) -> tuple[Operation, ...]:
        """What the routes answer."""
        return (
            Operation(
                method="POST",
                path="/v1/messages",
                summary="Answer a conversation, for clients of Anthropic's API",
                tag="Generation",
                request=MessagesRequest,
                example=_EXAMPLE,
                response=Message,
                events=MESSAGE_EVENTS,
                error=MessageError,
                error_statuses=_ERRORS,
            ),
            Operation(
                method="POST",
                path="/v1/messages/count_tokens",
                summary="Count the tokens of a conversation",
                tag="Generation",
                request=CountTokensRequest,
                example={"messages": _EXAMPLE["messages"]},
                response=TokenCount,
                error=MessageError,
                error_statuses=_ERRORS,
            ),
        )

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Answer one conversation."""
        arrival_time = time.monotonic()
        body = await parse_json_body(request, self._parser)
        generation = await self._serving.prepare(body, arrival_time, request[REQUEST_ID])
        return await answer_generation(request, self._engine, generation, is_stream=bool(body.stream))

    async def count_tokens(self, request: web.Request) -> web.Response:
        """Count the tokens of one conversation."""
        body = await parse_json_body(request, self._count_parser)
        return struct_response(TokenCount(input_tokens=await self._serving.count_tokens(body)))
