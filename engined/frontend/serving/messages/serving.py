"""POST /v1/messages and /v1/messages/count_tokens: from the body to a `Generation`, or to a count. Frontend process;
called by the route."""

import uuid

from engined.frontend.api.messages import CountTokensRequest, MessagesRequest
from engined.frontend.off_loop import LARGE_COUNT, call_off_loop
from engined.frontend.rendering.chat_template import ChatOptions
from engined.frontend.rendering.renderer import PromptExtras
from engined.frontend.serving.chat import ChatResult, ChatServing
from engined.frontend.serving.chat_messages import convert_messages
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation
from engined.frontend.serving.messages.convert import continues_answer, to_chat_messages, to_chat_request
from engined.frontend.serving.messages.formatter import MessageFormatter


class MessagesServing:
    """Turns Anthropic's requests into generations."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context
        self._chat = ChatServing(context)

    async def prepare(self, request: MessagesRequest, arrival_time: float, label: str) -> Generation:
        """Check and render one request. Raises RequestError for everything that is the client's fault."""
        self._context.require_runner("generate", "/v1/messages")

        def make_formatter(result: ChatResult) -> MessageFormatter:
            return MessageFormatter(result.response_id, result.model, label)

        return await self._chat.prepare(
            await call_off_loop(to_chat_request, request, is_large=len(request.messages) > LARGE_COUNT),
            arrival_time,
            label,
            response_id=f"msg_{uuid.uuid4().hex}",
            make_formatter=make_formatter,
        )

    async def count_tokens(self, request: CountTokensRequest) -> int:
        """Tokens of the prompt, also of one that the context cannot hold. Raises RequestError."""
        context = self._context
        context.require_runner("generate", "/v1/messages/count_tokens")
        context.check_model(request.model)
        messages = await convert_messages(to_chat_messages(request))
        continues = continues_answer(request)
        options = ChatOptions(add_generation_prompt=not continues, continue_final_message=continues)
        max_model_len = context.engine.require_ready().max_model_len
        engine_input = await context.renderer.tokenize_chat(
            messages, options, PromptExtras(param="messages"), max_model_len
        )
        return len(engine_input.prompt_token_ids)
