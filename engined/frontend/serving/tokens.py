"""Prompts to token ids and back, for clients that count or look. Frontend process; called by `routes.tokens`.

Conversations go through `ChatServing`, so that the ids are those that a chat completion computes.
"""

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    RenderResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from engined.frontend.off_loop import LARGE_COUNT, call_off_loop
from engined.frontend.rendering.renderer import EngineInput, PromptExtras
from engined.frontend.serving.chat import ChatServing
from engined.frontend.serving.context import ServingContext

CHAT_ONLY = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")


class TokenServing:
    """Answers the token routes. Nothing of it reaches the engine."""

    def __init__(self, context: ServingContext, chat: ChatServing) -> None:
        self._context = context
        self._chat = chat

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Ids of a text or a conversation, however long. Raises RequestError."""
        self._context.check_model(request.model)
        max_model_len = self._context.engine.require_ready().max_model_len
        if (request.prompt is None) == (request.messages is None):
            raise RequestError("give either prompt or messages", param="prompt")
        if request.messages is not None:
            engine_input = await self._chat.tokenize(_to_chat(request))
        else:
            engine_input = await self._tokenize_text(request, max_model_len)
        token_ids = engine_input.prompt_token_ids
        return TokenizeResponse(
            count=len(token_ids),
            max_model_len=max_model_len,
            tokens=token_ids,
            token_strs=await self._token_texts(token_ids) if request.return_token_strs else None,
        )

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """The text of token ids. Raises RequestError."""
        self._context.check_model(request.model)
        return DetokenizeResponse(prompt=await self._context.renderer.detokenize(request.tokens, "tokens"))

    async def render(self, request: ChatCompletionRequest) -> RenderResponse:
        """The prompt that a chat completion would compute. Raises RequestError wherever the completion does."""
        await self._chat.check(request)
        engine_input = await self._chat.render(request, min_output_tokens=1)
        return RenderResponse(
            prompt=engine_input.prompt_text or "",
            token_ids=engine_input.prompt_token_ids,
            count=len(engine_input.prompt_token_ids),
            max_model_len=self._context.engine.require_ready().max_model_len,
        )

    async def _token_texts(self, token_ids: list[int]) -> list[str]:
        token_text = self._context.renderer.tokenizer.token_text
        return await call_off_loop(
            lambda: [token_text(token_id) for token_id in token_ids], is_large=len(token_ids) > LARGE_COUNT
        )

    async def _tokenize_text(self, request: TokenizeRequest, max_model_len: int) -> EngineInput:
        assert request.prompt is not None
        for name in CHAT_ONLY:
            if getattr(request, name) is not None:
                raise RequestError(f"{name} needs messages: leave it out", param=name)
        adds_special = request.add_special_tokens is not False
        extras = PromptExtras(param="prompt", add_bos=adds_special, add_eos=adds_special)
        return await self._context.renderer.tokenize_text(request.prompt, extras, max_model_len)


def _to_chat(request: TokenizeRequest) -> ChatCompletionRequest:
    assert request.messages is not None
    return ChatCompletionRequest(
        messages=request.messages,
        add_special_tokens=request.add_special_tokens,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
        tools=request.tools,
    )
