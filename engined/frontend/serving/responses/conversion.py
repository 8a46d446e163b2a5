"""From a request of /v1/responses to one of /v1/chat/completions, and its errors back. Frontend process; pure."""

import re
from collections.abc import Sequence

from engined.errors import ContextLengthError, RequestError
from engined.frontend.api.chat import ChatCompletionRequest, ChatMessage
from engined.frontend.api.constraints import JsonSchemaFormat, ResponseFormat
from engined.frontend.api.parser import check_refused, refused_fields
from engined.frontend.api.response_object import (
    JsonObjectTextFormat,
    JsonSchemaTextFormat,
    PlainTextFormat,
    Response,
    ResponseReasoning,
    ResponseTextConfig,
    ResponseTextFormat,
)
from engined.frontend.api.responses import LOGPROBS, ReasoningConfig, ResponsesRequest, TextConfig, TextFormat
from engined.frontend.serving.chat import ChatResult
from engined.frontend.serving.checks import check_max_tokens
from engined.frontend.serving.responses.tools import parse_tool_choice, parse_tools, to_chat_tool_choice, to_chat_tools

_OWN_NAMES = tuple(
    (re.compile(pattern), own_name)
    for pattern, own_name in (
        (r"\bresponse_format(\.json_schema)?\b", "text.format"),
        (r"\breasoning_effort\b", "reasoning.effort"),
        (r"\b(tools\[\d+\])\.function\b", r"\1"),
        (r"\b(tool_choice)\.(function|allowed_tools)\b", r"\1"),
        (r"\bmax(_completion)?_tokens\b", "max_output_tokens"),
    )
)
"""What the fields of the chat request are called here."""
_REFUSED_IN_TEXT = refused_fields(TextConfig)
_REFUSED_IN_REASONING = refused_fields(ReasoningConfig)


def check_request(request: ResponsesRequest) -> None:
    """What the chat request cannot check for us. Raises RequestError naming the field."""
    check_max_tokens("max_output_tokens", request.max_output_tokens, 1)
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options is only allowed with stream: true", param="stream_options")
    if request.top_logprobs and not wants_logprobs(request):
        raise RequestError(f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs")
    if wants_logprobs(request) and request.tools and request.tool_choice != "none":
        raise RequestError(
            f"include: {LOGPROBS} is not available with tools, because calls have no place for it; leave it out, or "
            "use the logprobs of /v1/chat/completions",
            param="include",
            code="unsupported_parameter",
        )
    if request.reasoning is not None:
        check_refused(request.reasoning, _REFUSED_IN_REASONING, "reasoning")
    if request.text is not None:
        check_refused(request.text, _REFUSED_IN_TEXT, "text")


def wants_logprobs(request: ResponsesRequest) -> bool:
    """Whether the answer carries log-probabilities."""
    return LOGPROBS in (request.include or ())


def to_chat_request(request: ResponsesRequest, messages: Sequence[ChatMessage]) -> ChatCompletionRequest:
    """The same request in the words of chat completions; the instructions are the system message."""
    instructions = [] if request.instructions is None else [ChatMessage(role="system", content=request.instructions)]
    has_logprobs = wants_logprobs(request)
    return ChatCompletionRequest(
        messages=[*instructions, *messages],
        model=request.model,
        stream=request.stream,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        skip_special_tokens=request.skip_special_tokens,
        logprobs=has_logprobs,
        top_logprobs=request.top_logprobs if has_logprobs else None,
        priority=request.priority,
        cache_salt=request.cache_salt,
        request_id=request.request_id,
        timeout_s=request.timeout_s,
        ttft_timeout_s=request.ttft_timeout_s,
        chat_template_kwargs=request.chat_template_kwargs,
        response_format=_response_format(request),
        structured_outputs=request.structured_outputs,
        tools=to_chat_tools(parse_tools(request.tools)),
        tool_choice=to_chat_tool_choice(parse_tool_choice(request.tool_choice)),
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=_effort(request),
        thinking_token_budget=request.thinking_token_budget,
    )


def begun_response(request: ResponsesRequest, result: ChatResult, *, is_stored: bool) -> Response:
    """The response object before the first token."""
    sampling = result.sampling
    return Response(
        id=result.response_id,
        created_at=result.created,
        status="in_progress",
        model=result.model,
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        store=is_stored,
        metadata=request.metadata or {},
        max_output_tokens=request.max_output_tokens,
        temperature=sampling.temperature if request.temperature is None else request.temperature,
        top_p=sampling.top_p if request.top_p is None else request.top_p,
        top_logprobs=request.top_logprobs or 0,
        truncation=request.truncation or "disabled",
        text=ResponseTextConfig(format=_text_format(request)),
        reasoning=ResponseReasoning(effort=_effort(request)),
        tools=parse_tools(request.tools),
        tool_choice=parse_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_tool_calls=request.max_tool_calls,
        user=request.user,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
    )


def _effort(request: ResponsesRequest) -> str | None:
    return None if request.reasoning is None else request.reasoning.effort


def _response_format(request: ResponsesRequest) -> ResponseFormat | None:
    text_format = _asked_format(request)
    if text_format is None:
        return None
    json_schema = None
    if text_format.type == "json_schema" or text_format.schema is not None:
        json_schema = JsonSchemaFormat(schema=text_format.schema)
    return ResponseFormat(type=text_format.type, json_schema=json_schema)


def _text_format(request: ResponsesRequest) -> ResponseTextFormat:
    """As the response object has it."""
    text_format = _asked_format(request)
    if text_format is None or text_format.type == "text":
        return PlainTextFormat()
    if text_format.type == "json_object":
        return JsonObjectTextFormat()
    return JsonSchemaTextFormat(
        name=text_format.name or "response",
        description=text_format.description,
        schema=text_format.schema,
        strict=text_format.strict,
    )


def _asked_format(request: ResponsesRequest) -> TextFormat | None:
    return None if request.text is None else request.text.format


def rename_param(error: RequestError, request: ResponsesRequest) -> RequestError:
    """An error of the chat request, with the name that the field has here."""
    param, message = error.param, str(error)
    for pattern, own_name in _OWN_NAMES:
        param = None if param is None else pattern.sub(own_name, param)
        message = pattern.sub(own_name, message)
    if param is not None and re.match(r"messages\b", param):
        param = "input"
    if isinstance(error, ContextLengthError):
        hint = "" if request.truncation == "auto" else ', or set truncation to "auto" to drop the oldest items'
        return ContextLengthError(f"{message}{hint}", param or "input")
    return RequestError(message, param=param, code=error.code, status=error.status, type=error.type)
