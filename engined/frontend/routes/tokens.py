"""POST /tokenize, /detokenize and /v1/chat/completions/render. Frontend process."""

from aiohttp import web

from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.operation import BODY_ERRORS, Operation
from engined.frontend.api.parser import BodyParser
from engined.frontend.api.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    RenderResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from engined.frontend.http_errors import struct_response
from engined.frontend.routes.body import parse_json_body
from engined.frontend.serving.chat import ChatServing
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.tokens import TokenServing

PREFIXES = ("", "/v1")
"""vLLM's paths, and the same below the base URL of an OpenAI client."""


class TokenRoutes:
    """What the tokenizer and the chat template make of a prompt."""

    def __init__(self, context: ServingContext) -> None:
        self._serving = TokenServing(context, ChatServing(context))
        self._tokenize_parser = BodyParser(TokenizeRequest, context.server.unknown_fields)
        self._detokenize_parser = BodyParser(DetokenizeRequest, context.server.unknown_fields)
        self._chat_parser = BodyParser(ChatCompletionRequest, context.server.unknown_fields)

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        for prefix in PREFIXES:
            router.add_post(f"{prefix}/tokenize", self.tokenize)
            router.add_post(f"{prefix}/detokenize", self.detokenize)
        router.add_post("/v1/chat/completions/render", self.render)

    def operations(self) -> tuple[Operation, ...]:
        """What the routes take and answer."""
        messages = [{"role": "user", "content": "Hello"}]
        render = Operation(
            method="POST",
            path="/v1/chat/completions/render",
            summary="The prompt that a chat completion with the same body would compute",
            tag="Tokens",
            request=ChatCompletionRequest,
            response=RenderResponse,
            error_statuses=BODY_ERRORS,
            example={"messages": messages},
        )
        return (*(operation for prefix in PREFIXES for operation in _token_operations(prefix)), render)

    async def tokenize(self, request: web.Request) -> web.Response:
        """Ids of a text or a conversation."""
        body = await parse_json_body(request, self._tokenize_parser)
        return struct_response(await self._serving.tokenize(body))

    async def detokenize(self, request: web.Request) -> web.Response:
        """Text of token ids."""
        body = await parse_json_body(request, self._detokenize_parser)
        return struct_response(await self._serving.detokenize(body))

    async def render(self, request: web.Request) -> web.Response:
        """Prompt of a conversation."""
        body = await parse_json_body(request, self._chat_parser)
        return struct_response(await self._serving.render(body))


def _token_operations(prefix: str) -> tuple[Operation, Operation]:
    return (
        Operation(
            method="POST",
            path=f"{prefix}/tokenize",
            summary="Token ids of a text or a conversation, however long",
            tag="Tokens",
            request=TokenizeRequest,
            response=TokenizeResponse,
            error_statuses=BODY_ERRORS,
            example={"prompt": "Hello, world", "return_token_strs": True},
        ),
        Operation(
            method="POST",
            path=f"{prefix}/detokenize",
            summary="The text of token ids",
            tag="Tokens",
            request=DetokenizeRequest,
            response=DetokenizeResponse,
            error_statuses=BODY_ERRORS,
            example={"tokens": [1, 2, 3]},
        ),
    )
