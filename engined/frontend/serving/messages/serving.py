"""POST /v1/messages and /v1/messages/count_tokens: from the body to a `Generation`, or to a count. Frontend process;
called by the route."""

import uuid
from collections.abc import Callable
from typing import TypeVar

from engined.errors import ContextLengthError, RequestError
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.messages import CountTokensRequest, MessagesRequest, PromptFields
from engined.frontend.off_loop import LARGE_COUNT, call_off_loop
from engined.frontend.serving.chat import ChatResult, ChatServing
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation
from engined.frontend.serving.messages.convert import rename_fields, to_chat_prompt, to_chat_request
from engined.frontend.serving.messages.formatter import MessageFormatter
from engined.frontend.serving.messages.reasoning import ReasoningAbilities

Fields = TypeVar("Fields", bound=PromptFields)


class MessagesServing:
    """Turns Anthropic's requests into generations."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context
        self._chat = ChatServing(context)

    async def prepare(self, request: MessagesRequest, arrival_time: float, label: str) -> Generation:
        """Check and render one request. Raises RequestError for everything that is the client's fault."""
        self._context.require_runner("generate", "/v1/messages")

        def make_formatter(result: ChatResult) -> MessageFormatter:
            return MessageFormatter(result.response_id, result.model, label, result.parsing)

        chat_request = await self._convert(to_chat_request, request)
        try:
            return await self._chat.prepare(
                chat_request,
                arrival_time,
                label,
                response_id=f"msg_{uuid.uuid4().hex}",
                make_formatter=make_formatter,
            )
        except ContextLengthError:
            raise
        except RequestError as error:
            raise rename_fields(error) from error

    async def count_tokens(self, request: CountTokensRequest) -> int:
        """Tokens of the prompt, also of one that the context cannot hold. Raises RequestError."""
        self._context.require_runner("generate", "/v1/messages/count_tokens")
        self._context.check_model(request.model)
        chat_request = await self._convert(to_chat_prompt, request)
        try:
            engine_input = await self._chat.tokenize(chat_request)
        except RequestError as error:
            raise rename_fields(error) from error
        return len(engine_input.prompt_token_ids)

    async def _convert(
        self, convert: Callable[[Fields, ReasoningAbilities], ChatCompletionRequest], request: Fields
    ) -> ChatCompletionRequest:
        """Beside the event loop, if there are many messages."""
        is_large = len(request.messages) > LARGE_COUNT
        return await call_off_loop(convert, request, self._abilities(request), is_large=is_large)

    def _abilities(self, request: PromptFields) -> ReasoningAbilities:
        context = self._context
        shows_tools = bool(request.tools) and (request.tool_choice is None or request.tool_choice.type != "none")
        return ReasoningAbilities(
            has_format=context.output_format.reasoning is not None,
            template_variables=context.renderer.template_variables(has_tools=shows_tools),
        )
