"""From a conversation to a `Generation`. Frontend process; called by every route that takes messages.

/v1/chat/completions sends its body as it is; the other APIs put theirs into the same request, and give a formatter of
their own for the answer.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.output.logprobs import LogprobFormatter
from engined.frontend.output.request_state import OutputOptions
from engined.frontend.rendering.chat_template import ChatOptions, content_texts
from engined.frontend.rendering.renderer import EngineInput, PromptExtras
from engined.frontend.serving.chat_format import ChatFormatter, ChatShape
from engined.frontend.serving.chat_messages import convert_messages, to_template_messages
from engined.frontend.serving.checks import (
    check_common,
    check_logprobs,
    check_max_tokens,
    resolve_time_limits,
    truncation_side,
)
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation, ResponseFormatter, Usage
from engined.frontend.serving.requests import build_requests
from engined.frontend.serving.sampling import LogprobsWanted, resolve_num_choices, resolve_output_options
from engined.frontend.serving.time_limits import TimeLimits
from engined.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResult:
    """A conversation that was checked and rendered: what the formatter of its answer may need to know."""

    response_id: str
    created: int
    """Unix seconds."""
    model: str
    """The name that responses carry."""
    num_choices: int
    engine_input: EngineInput
    sampling: SamplingParams
    """As resolved for the first choice: `max_tokens` is what the context really leaves."""
    logprobs: LogprobFormatter | None
    """Given if the request asked for log-probabilities of the answer or of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChatSettings:
    """What a request asks for besides the prompt and the sampling."""

    num_choices: int
    logprobs: LogprobsWanted
    max_tokens: int | None
    options: OutputOptions
    time_limits: TimeLimits


MakeFormatter = Callable[[ChatResult], ResponseFormatter]


class ChatServing:
    """Turns conversations into generations."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def prepare(
        self,
        request: ChatCompletionRequest,
        arrival_time: float,
        label: str,
        *,
        response_id: str | None = None,
        make_formatter: MakeFormatter | None = None,
    ) -> Generation:
        """Check and render one request. Raises RequestError for everything that is the client's fault.

        An API with ids and answers of its own gives `response_id`, which must be new, and `make_formatter`.
        """
        context = self._context
        settings = self._resolve_settings(request)
        grammar = await context.resolve_grammar(request)
        engine_input = await self.render(request, min_output_tokens=1)
        room = context.engine.require_ready().max_model_len - len(engine_input.prompt_token_ids)
        sampling = context.sampling.resolve(request, settings.max_tokens, room, settings.logprobs)
        result = ChatResult(
            response_id=response_id or f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=context.model_names[0],
            num_choices=settings.num_choices,
            engine_input=engine_input,
            sampling=sampling,
            logprobs=self._logprob_formatter(request),
        )
        return Generation(
            response_id=result.response_id,
            label=request.request_id or label,
            requests=build_requests(
                result.response_id,
                [engine_input],
                [sampling],
                settings.num_choices,
                request.priority or 0,
                arrival_time,
                grammar,
            ),
            choices_per_prompt=settings.num_choices,
            options=settings.options,
            formatter=_make_chat_formatter(request, result) if make_formatter is None else make_formatter(result),
            usage=Usage(num_prompt_tokens=len(engine_input.prompt_token_ids)),
            arrival_time=arrival_time,
            time_limits=settings.time_limits,
        )

    async def check(self, request: ChatCompletionRequest) -> None:
        """Raises RequestError for all that `prepare` would refuse without looking at the messages.

        For routes that take the body of a generation and compute its prompt only.
        """
        settings = self._resolve_settings(request)
        room = self._context.engine.require_ready().max_model_len
        self._context.sampling.resolve(request, settings.max_tokens, room, settings.logprobs)
        await self._context.resolve_grammar(request)

    async def render(self, request: ChatCompletionRequest, *, min_output_tokens: int) -> EngineInput:
        """The prompt of a conversation, which leaves room in the context for at least `min_output_tokens`.

        Raises RequestError for faulty messages, and ContextLengthError if they are too long.
        """
        extras = PromptExtras(
            param="messages",
            add_bos=request.add_special_tokens is not False,
            truncate_prompt_tokens=request.truncate_prompt_tokens,
            truncation_side=truncation_side(request),
            cache_salt=request.cache_salt,
            min_output_tokens=min_output_tokens,
        )
        max_model_len = self._context.engine.require_ready().max_model_len
        messages = await convert_messages(request.messages)
        return await self._context.renderer.render_chat(messages, self._chat_options(request), extras, max_model_len)

    async def tokenize(self, request: ChatCompletionRequest) -> EngineInput:
        """The prompt of a conversation, untruncated, even if it does not fit the context: for those who count.

        Raises RequestError for faulty messages.
        """
        extras = PromptExtras(param="messages", add_bos=request.add_special_tokens is not False)
        max_model_len = self._context.engine.require_ready().max_model_len
        messages = await convert_messages(request.messages)
        return await self._context.renderer.tokenize_chat(messages, self._chat_options(request), extras, max_model_len)

    def _resolve_settings(self, request: ChatCompletionRequest) -> _ChatSettings:
        context = self._context
        context.require_runner("generate", "/v1/chat/completions")
        context.check_model(request.model)
        context.engine.require_ready()
        check_common(request, has_priority=context.has_priority)
        return _ChatSettings(
            num_choices=resolve_num_choices(request),
            logprobs=self._resolve_logprobs(request),
            max_tokens=_resolve_max_tokens(request),
            options=resolve_output_options(request, context.server.stream_interval),
            time_limits=resolve_time_limits(request),
        )

    def _resolve_logprobs(self, request: ChatCompletionRequest) -> LogprobsWanted:
        max_logprobs = self._context.server.max_logprobs
        top_logprobs = check_logprobs("top_logprobs", request.top_logprobs, max_logprobs)
        if top_logprobs is not None and not request.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        prompt = check_logprobs("prompt_logprobs", request.prompt_logprobs, max_logprobs)
        return LogprobsWanted(generated=(top_logprobs or 0) if request.logprobs else None, prompt=prompt)

    def _chat_options(self, request: ChatCompletionRequest) -> ChatOptions:
        continues = bool(request.continue_final_message)
        if continues and request.add_generation_prompt:
            raise RequestError(
                "continue_final_message continues the last message, add_generation_prompt begins a new one: "
                "set add_generation_prompt to false",
                param="continue_final_message",
            )
        kwargs = dict(request.chat_template_kwargs or {})
        if request.reasoning_effort is not None:
            kwargs["reasoning_effort"] = request.reasoning_effort
        template = self._context.renderer.chat_template
        known = template.variables if template is not None else frozenset()
        for name in kwargs:
            if name not in known:
                param = "reasoning_effort" if name == "reasoning_effort" else f"chat_template_kwargs.{name[:64]}"
                raise RequestError(
                    f"{param}: the model's chat template has no such variable; leave it out",
                    param=param,
                    code="unsupported_parameter",
                )
        return ChatOptions(
            add_generation_prompt=not continues and request.add_generation_prompt is not False,
            continue_final_message=continues,
            template_kwargs=kwargs,
        )

    def _logprob_formatter(self, request: ChatCompletionRequest) -> LogprobFormatter | None:
        if not request.logprobs and request.prompt_logprobs is None:
            return None
        tokens_as_ids = bool(request.return_tokens_as_token_ids)
        return LogprobFormatter(self._context.renderer.tokenizer, request.top_logprobs or 0, tokens_as_ids)


def _resolve_max_tokens(request: ChatCompletionRequest) -> int | None:
    check_max_tokens("max_tokens", request.max_tokens, 1)
    check_max_tokens("max_completion_tokens", request.max_completion_tokens, 1)
    return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens


def _make_chat_formatter(request: ChatCompletionRequest, result: ChatResult) -> ChatFormatter:
    stream_options = request.stream_options
    last = to_template_messages(request.messages[-1:])[0]
    echoes = bool(request.echo) and last["role"] == "assistant"
    shape = ChatShape(
        response_id=result.response_id,
        created=result.created,
        model=result.model,
        num_choices=result.num_choices,
        echo_text="\n".join(content_texts(last["content"])) if echoes else "",
        has_logprobs=bool(request.logprobs),
        has_prompt_logprobs=request.prompt_logprobs is not None,
        prompt_token_ids=result.engine_input.prompt_token_ids if request.return_token_ids else None,
        prompt_text=result.engine_input.prompt_text if request.return_prompt_text else None,
        include_usage=bool(stream_options is not None and stream_options.include_usage),
        continuous_usage=bool(stream_options is not None and stream_options.continuous_usage_stats),
    )
    return ChatFormatter(shape, result.logprobs)
