"""From a request of /v1/responses to one of /v1/chat/completions, and its errors back. Frontend process; pure."""

from collections.abc import Sequence

from engined.errors import ContextLengthError, RequestError
from engined.frontend.api.chat import ChatCompletionRequest, ChatMessage
from engined.frontend.api.fields import NO_GRAMMAR
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.api.response_object import Response
from engined.frontend.api.responses import LOGPROBS, ReasoningConfig, ResponsesRequest, TextConfig, TextFormat
from engined.frontend.serving.chat import ChatResult
from engined.frontend.serving.checks import check_max_tokens

_OWN_NAMES = {"messages": "input", "max_completion_tokens": "max_output_tokens"}
"""What a field of the chat request is called here."""
_REFUSED_IN_TEXT = refused_fields(TextConfig)
_REFUSED_IN_FORMAT = refused_fields(TextFormat)
_REFUSED_IN_REASONING = refused_fields(ReasoningConfig)


def check_request(request: ResponsesRequest) -> None:
    """What the chat request cannot check for us. Raises RequestError naming the field."""
    check_max_tokens("max_output_tokens", request.max_output_tokens, 1)
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options is only allowed with stream: true", param="stream_options")
    if request.top_logprobs and not wants_logprobs(request):
        raise RequestError(f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs")
    if request.reasoning is not None:
        check_refused(request.reasoning, _REFUSED_IN_REASONING, "reasoning")
    if request.text is not None:
        check_refused(request.text, _REFUSED_IN_TEXT, "text")
        if request.text.format is not None and request.text.format.type != "text":
            raise unsupported("text.format", NO_GRAMMAR)
        if request.text.format is not None:
            check_refused(request.text.format, _REFUSED_IN_FORMAT, "text.format")


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
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_tool_calls=request.max_tool_calls,
        user=request.user,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
    )


def rename_param(error: RequestError, request: ResponsesRequest) -> RequestError:
    """An error of the chat request, with the name that the field has here."""
    param = error.param if error.param is None else _OWN_NAMES.get(error.param, error.param)
    if isinstance(error, ContextLengthError):
        hint = "" if request.truncation == "auto" else ', or set truncation to "auto" to drop the oldest items'
        return ContextLengthError(f"{error}{hint}", param or "input")
    return RequestError(str(error), param=param, code=error.code, status=error.status, type=error.type)
