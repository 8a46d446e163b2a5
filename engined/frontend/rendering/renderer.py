"""From the content of a request to what the engine computes. Frontend process; used by the serving layer.

Four steps: `render_messages` (chat template), `tokenize_prompts`, `apply_prompt_extras` (truncation), and
`process_for_engine` (limits). The first two are CPU work and run in a thread pool, off the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, ParamSpec, TypeVar

from engined.errors import ContextLengthError, RequestError
from engined.frontend.rendering.chat_template import ChatOptions, ChatTemplate
from engined.frontend.rendering.messages import Message
from engined.frontend.rendering.pooling_input import PoolingExtras, PoolingInput, PoolingPrompt, PoolingTokenizer
from engined.tokenization.tokenizer import ModelTokenizer
from engined.trace.tracer import NO_TRACER, Tracer

MAX_RENDER_THREADS = 4
MAX_FREE_BYTES = 1 << 20
"""A text of this size is tokenized although it cannot fit the context; hostile ones take about 2 s."""

TokenIds = list[int]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExtras:
    """What a request asks of its prompt besides the text."""

    param: str = "prompt"
    """Field to name when the prompt is at fault."""
    add_bos: bool = True
    add_eos: bool = False
    """Both only where the model's tokenizer has them, and only if they are not there yet."""
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"
    cache_salt: str | None = None
    min_output_tokens: int = 1
    """Room that must remain in the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """A rendered prompt: pieces of text that are tokenized separately and joined."""

    pieces: list[str]

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInput:
    """One prompt, ready to be sent."""

    prompt_token_ids: TokenIds
    prompt_text: str | None = None
    """None if the prompt was given as token ids."""
    cache_salt: str | None = None


class Renderer:
    """Template, tokenizer and the threads that run them."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        chat_template: ChatTemplate | None,
        vocab_size: int,
        tool_template: ChatTemplate | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`tool_template` is for conversations with tools, if they have one of their own."""
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._tool_template = chat_template if tool_template is None else tool_template
        self._vocab_size = vocab_size
        self._tracer = tracer
        self._threads = ThreadPoolExecutor(MAX_RENDER_THREADS, thread_name_prefix="render")

    def template_variables(self, *, has_tools: bool) -> frozenset[str]:
        """What a request may set with chat_template_kwargs."""
        template = self._tool_template if has_tools else self.chat_template
        return frozenset() if template is None else template.variables

    async def render_chat(
        self, messages: Sequence[Message], options: ChatOptions, extras: PromptExtras, max_model_len: int
    ) -> EngineInput:
        """Render and tokenize one conversation. Raises RequestError."""
        prompt = await self._run("apply chat template", self.render_messages, messages, options)
        [engine_input] = await self._process([prompt], extras, max_model_len)
        return engine_input

    async def render_completion(
        self, prompts: Sequence[str | TokenIds], extras: PromptExtras, max_model_len: int
    ) -> list[EngineInput]:
        """Tokenize raw prompts; token ids are taken as they are. Raises RequestError."""
        parsed = [TextPrompt(pieces=[prompt]) if isinstance(prompt, str) else prompt for prompt in prompts]
        return await self._process(parsed, extras, max_model_len)

    async def tokenize_chat(
        self, messages: Sequence[Message], options: ChatOptions, extras: PromptExtras, max_model_len: int
    ) -> EngineInput:
        """What `render_chat` makes, untruncated, even if it does not fit the context. Raises RequestError."""
        prompt = await self._run("apply chat template", self.render_messages, messages, options)
        return await self._run("tokenize", self._tokenize_freely, prompt, extras, max_model_len)

    async def tokenize_text(self, text: str, extras: PromptExtras, max_model_len: int) -> EngineInput:
        """What `render_completion` makes, untruncated, even if it is empty or does not fit. Raises RequestError."""
        return await self._run("tokenize", self._tokenize_freely, TextPrompt(pieces=[text]), extras, max_model_len)

    async def detokenize(self, token_ids: TokenIds, param: str) -> str:
        """The text of `token_ids`, special tokens included. Raises RequestError for ids outside the vocabulary."""
        self._check_ids(token_ids, param)
        return await self._run("detokenize", self.tokenizer.decode, token_ids)

    async def render_pooling(
        self, prompts: Sequence[PoolingPrompt], extras: PoolingExtras, max_model_len: int
    ) -> list[PoolingInput]:
        """Tokenize the prompts of a request to a pooling model, in their order. Raises RequestError."""
        tokenizer = PoolingTokenizer(self.tokenizer, self._vocab_size, extras, max_model_len)
        return await self._run("tokenize", lambda: [tokenizer.encode(prompt) for prompt in prompts])

    def render_messages(self, messages: Sequence[Message], options: ChatOptions) -> TextPrompt:
        """Apply the chat template."""
        template = self._tool_template if options.tools else self.chat_template
        if template is None:
            raise RequestError(
                "the model has no chat template: use /v1/completions, or start engined with --chat-template FILE",
                param="messages",
                code="chat_template_error",
            )
        return TextPrompt(pieces=template.render(messages, options))

    def tokenize_prompts(
        self, prompts: Sequence[TextPrompt | TokenIds], extras: PromptExtras, max_model_len: int
    ) -> list[EngineInput]:
        """Turn texts into ids. A text that cannot fit, whatever its tokens, is refused by its size alone."""
        inputs = []
        for prompt in prompts:
            if isinstance(prompt, TextPrompt):
                inputs.append(self._tokenize(prompt, extras, max_model_len))
            else:
                self._check_ids(prompt, extras.param)
                inputs.append(EngineInput(prompt_token_ids=prompt, cache_salt=extras.cache_salt))
        return inputs

    def apply_prompt_extras(self, engine_input: EngineInput, extras: PromptExtras, max_model_len: int) -> EngineInput:
        """Truncate the prompt if that was asked for."""
        limit = _truncation_limit(extras, max_model_len)
        token_ids = engine_input.prompt_token_ids
        if limit is None or len(token_ids) <= limit:
            return engine_input
        kept = token_ids[-limit:] if extras.truncation_side == "left" else token_ids[:limit]
        return replace(engine_input, prompt_token_ids=kept, prompt_text=self.tokenizer.decode(kept))

    def process_for_engine(self, engine_input: EngineInput, extras: PromptExtras, max_model_len: int) -> EngineInput:
        """Check that the prompt is there and fits. Raises RequestError or ContextLengthError."""
        num_tokens = len(engine_input.prompt_token_ids)
        if num_tokens == 0:
            raise RequestError("the prompt is empty: send at least one token", param=extras.param)
        if num_tokens + extras.min_output_tokens > max_model_len:
            raise ContextLengthError(
                f"the prompt has {num_tokens} tokens, but prompt and output together may have at most "
                f"{max_model_len}: shorten the prompt",
                extras.param,
            )
        return engine_input

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _process(
        self, prompts: Sequence[TextPrompt | TokenIds], extras: PromptExtras, max_model_len: int
    ) -> list[EngineInput]:
        inputs = await self._run("tokenize", self.tokenize_prompts, prompts, extras, max_model_len)
        inputs = [self.apply_prompt_extras(engine_input, extras, max_model_len) for engine_input in inputs]
        return [self.process_for_engine(engine_input, extras, max_model_len) for engine_input in inputs]

    def _tokenize(self, prompt: TextPrompt, extras: PromptExtras, max_model_len: int) -> EngineInput:
        pieces = prompt.pieces
        limit = _truncation_limit(extras, max_model_len)
        max_tokens = max_model_len if limit is None else limit
        max_bytes = max_tokens * self.tokenizer.max_token_bytes
        num_bytes = sum(len(piece.encode()) for piece in pieces)
        if num_bytes > max_bytes:
            if limit is None:
                raise ContextLengthError(
                    f"the prompt has {num_bytes} bytes, which is more than {max_model_len} tokens, the most that "
                    "prompt and output together may have: shorten the prompt",
                    extras.param,
                )
            # Far more than the kept tokens can cover; tokenizing the rest would be wasted.
            pieces = _cut(pieces, max_bytes, extras.truncation_side)
        token_ids = self._encode(pieces, bos=extras.add_bos, eos=extras.add_eos)
        return EngineInput(prompt_token_ids=token_ids, prompt_text=prompt.text, cache_salt=extras.cache_salt)

    def _tokenize_freely(self, prompt: TextPrompt, extras: PromptExtras, max_model_len: int) -> EngineInput:
        max_bytes = max(MAX_FREE_BYTES, max_model_len * self.tokenizer.max_token_bytes)
        num_bytes = len(prompt.text.encode())
        if num_bytes > max_bytes:
            raise RequestError(
                f"the prompt has {num_bytes} bytes; at most {max_bytes} are tokenized at once: split it",
                param=extras.param,
            )
        token_ids = self._encode(prompt.pieces, bos=extras.add_bos, eos=extras.add_eos)
        return EngineInput(prompt_token_ids=token_ids, prompt_text=prompt.text)

    def _encode(self, pieces: list[str], *, bos: bool, eos: bool) -> TokenIds:
        token_ids: TokenIds = []
        for piece in pieces:
            token_ids += self.tokenizer.encode(piece)
        return self.tokenizer.add_special_ids(token_ids, bos=bos, eos=eos)

    def _check_ids(self, token_ids: TokenIds, param: str) -> None:
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= self._vocab_size):
            raise RequestError(
                f"{param}: token ids must lie in the vocabulary, 0 to {self._vocab_size - 1}", param=param
            )

    async def _run(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in a thread; `name` is what the trace calls it."""

        def call() -> T:
            with self._tracer.lane(name):
                return function(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _truncation_limit(extras: PromptExtras, max_model_len: int) -> int | None:
    """Tokens to keep; -1 asks for as many as leave room for the output."""
    if extras.truncate_prompt_tokens == -1:
        return max(1, max_model_len - extras.min_output_tokens)
    return extras.truncate_prompt_tokens


def _cut(pieces: list[str], max_length: int, side: Literal["left", "right"]) -> list[str]:
    """The last (or first) `max_length` characters, still in pieces: joined, they could form a special token."""
    kept: list[str] = []
    for piece in reversed(pieces) if side == "left" else pieces:
        room = max_length - sum(map(len, kept))
        if room <= 0:
            break
        kept.append(piece[-room:] if side == "left" else piece[:room])
    return kept[::-1] if side == "left" else kept
