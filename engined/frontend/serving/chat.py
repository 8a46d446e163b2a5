"""POST /v1/chat/completions: from the body to a `Generation`. Frontend process; called by the route."""

import time
import uuid

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest, ChatMessage, ContentPart
from engined.frontend.api.fields import Unsupported
from engined.frontend.api.parser import is_given, unsupported
from engined.frontend.output.logprobs import LogprobFormatter
from engined.frontend.rendering.chat_template import ChatOptions, Message, content_texts
from engined.frontend.rendering.renderer import EngineInput, PromptExtras
from engined.frontend.serving.chat_format import ChatFormatter, ChatShape
from engined.frontend.serving.checks import check_common, check_logprobs, check_max_tokens, truncation_side
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.generation import Generation, Usage
from engined.frontend.serving.requests import build_requests
from engined.frontend.serving.sampling import LogprobsWanted, resolve_num_choices, resolve_output_options

ROLES = ("system", "developer", "user", "assistant")
TOOL_ROLES = ("tool", "function")
_ACCEPTED_EMPTY = (b"[]",)


class ChatServing:
    """Turns chat requests into generations."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def prepare(self, request: ChatCompletionRequest, arrival_time: float, label: str) -> Generation:
        """Check and render one request. Raises RequestError for everything that is the client's fault."""
        context = self._context
        context.check_model(request.model)
        ready = context.engine.require_ready()
        check_common(request, has_priority=context.has_priority)
        if request.modalities is not None and request.modalities != ["text"]:
            raise unsupported("modalities")
        num_choices = resolve_num_choices(request)
        logprobs = self._resolve_logprobs(request)
        max_tokens = self._resolve_max_tokens(request)
        options = resolve_output_options(request, context.server.stream_interval)
        messages = [_to_message(message, index) for index, message in enumerate(request.messages)]
        if not messages:
            raise RequestError("messages must hold at least one message", param="messages")
        engine_input = await context.renderer.render_chat(
            messages, self._chat_options(request), _prompt_extras(request), ready.max_model_len
        )
        room = ready.max_model_len - len(engine_input.prompt_token_ids)
        sampling = context.sampling.resolve(request, max_tokens, room, logprobs)
        response_id = f"chatcmpl-{uuid.uuid4().hex}"
        return Generation(
            response_id=response_id,
            label=request.request_id or label,
            requests=build_requests(
                response_id, [engine_input], [sampling], num_choices, request.priority or 0, arrival_time
            ),
            choices_per_prompt=num_choices,
            options=options,
            formatter=self._formatter(request, response_id, num_choices, engine_input, messages),
            usage=Usage(num_prompt_tokens=len(engine_input.prompt_token_ids)),
            arrival_time=arrival_time,
        )

    def _resolve_logprobs(self, request: ChatCompletionRequest) -> LogprobsWanted:
        max_logprobs = self._context.server.max_logprobs
        top_logprobs = check_logprobs("top_logprobs", request.top_logprobs, max_logprobs)
        if top_logprobs is not None and not request.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        prompt = check_logprobs("prompt_logprobs", request.prompt_logprobs, max_logprobs)
        return LogprobsWanted(generated=(top_logprobs or 0) if request.logprobs else None, prompt=prompt)

    def _resolve_max_tokens(self, request: ChatCompletionRequest) -> int | None:
        check_max_tokens("max_tokens", request.max_tokens, 1)
        check_max_tokens("max_completion_tokens", request.max_completion_tokens, 1)
        return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens

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

    def _formatter(
        self,
        request: ChatCompletionRequest,
        response_id: str,
        num_choices: int,
        engine_input: EngineInput,
        messages: list[Message],
    ) -> ChatFormatter:
        tokenizer = self._context.renderer.tokenizer
        stream_options = request.stream_options
        logprobs = None
        if request.logprobs or request.prompt_logprobs is not None:
            logprobs = LogprobFormatter(tokenizer, request.top_logprobs or 0, bool(request.return_tokens_as_token_ids))
        echoes = bool(request.echo) and messages[-1]["role"] == "assistant"
        shape = ChatShape(
            response_id=response_id,
            created=int(time.time()),
            model=self._context.model_names[0],
            num_choices=num_choices,
            echo_text="\n".join(content_texts(messages[-1]["content"])) if echoes else "",
            has_logprobs=bool(request.logprobs),
            has_prompt_logprobs=request.prompt_logprobs is not None,
            prompt_token_ids=engine_input.prompt_token_ids if request.return_token_ids else None,
            prompt_text=engine_input.prompt_text if request.return_prompt_text else None,
            include_usage=bool(stream_options is not None and stream_options.include_usage),
            continuous_usage=bool(stream_options is not None and stream_options.continuous_usage_stats),
        )
        return ChatFormatter(shape, logprobs)


def _prompt_extras(request: ChatCompletionRequest) -> PromptExtras:
    return PromptExtras(
        param="messages",
        add_bos=request.add_special_tokens is not False,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        truncation_side=truncation_side(request),
        cache_salt=request.cache_salt,
    )


def _to_message(message: ChatMessage, index: int) -> Message:
    """One message as the template sees it. Raises RequestError naming the message."""
    where = f"messages[{index}]"
    for name in ("tool_calls", "tool_call_id", "function_call", "audio"):
        value: Unsupported = getattr(message, name)
        if is_given(value, harmless=_ACCEPTED_EMPTY):
            raise unsupported(f"{where}.{name}")
    if message.role in TOOL_ROLES:
        raise RequestError(
            f"{where}: the role {message.role!r} is not supported, because tool calling is not available yet; "
            "send the result in a user message",
            param=f"{where}.role",
            code="unsupported_parameter",
        )
    if message.role not in ROLES:
        raise RequestError(
            f"{where}: the role must be one of {', '.join(ROLES)}, not {message.role[:64]!r}",
            param=f"{where}.role",
        )
    if message.content is None and message.role != "assistant":
        raise RequestError(f"{where}.content is required", param=f"{where}.content")
    converted: Message = {"role": message.role, "content": _to_content(message.content, where)}
    if message.name is not None:
        if "\0" in message.name:
            raise RequestError(f"{where}.name holds a NUL character", param=f"{where}.name")
        converted["name"] = message.name
    return converted


def _to_content(content: str | list[ContentPart] | None, where: str) -> str | list[dict[str, str]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not content:
        raise RequestError(f"{where}.content has no parts", param=f"{where}.content")
    return [
        {"type": "text", "text": _part_text(part, f"{where}.content[{position}]")}
        for position, part in enumerate(content)
    ]


def _part_text(part: ContentPart, where: str) -> str:
    if part.type not in ("text", "refusal"):
        raise RequestError(
            f"{where}: parts of type {part.type[:64]!r} are not supported; the model reads text only",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise RequestError(f"{where}.{part.type} is required", param=f"{where}.{part.type}")
    return text
