"""From the bodies of /v1/messages to chat completions, and errors back. Pure.

Each RequestError names the field as Anthropic does.
"""

import re

import msgspec

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.constraints import JsonSchemaFormat, ResponseFormat
from engined.frontend.api.fields import MAX_STOP_STRING_LENGTH, MAX_STOP_STRINGS
from engined.frontend.api.messages import MessagesRequest, PromptFields
from engined.frontend.serving.messages.conversation import continues_answer, to_chat_messages
from engined.frontend.serving.messages.reasoning import ReasoningAbilities, resolve_reasoning
from engined.frontend.serving.messages.tools import to_chat_tools, to_tool_choice

_OWN_NAMES = (
    (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"response_format(\.json_schema)?", "output_config.format"),
    (r"thinking_token_budget", "thinking.budget_tokens"),
    (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
)
"""Patterns of what a field of the chat request is called, and its name here."""


def to_chat_request(request: MessagesRequest, abilities: ReasoningAbilities) -> ChatCompletionRequest:
    """The same request as /v1/chat/completions takes it, checked where the names of the two differ."""
    _check_stop_sequences(request.stop_sequences)
    return msgspec.structs.replace(
        to_chat_prompt(request, abilities),
        stream=request.stream,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop_sequences,
    )


def to_chat_prompt(request: PromptFields, abilities: ReasoningAbilities) -> ChatCompletionRequest:
    """What the two endpoints have in common."""
    choice = request.tool_choice
    reasoning = resolve_reasoning(request, abilities)
    return ChatCompletionRequest(
        model=request.model,
        messages=to_chat_messages(request),
        continue_final_message=continues_answer(request),
        tools=to_chat_tools(request.tools),
        tool_choice=to_tool_choice(choice, request.tools),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=_response_format(request),
        include_reasoning=reasoning.include_reasoning,
        reasoning_effort=reasoning.reasoning_effort,
        thinking_token_budget=reasoning.thinking_token_budget,
        chat_template_kwargs=reasoning.chat_template_kwargs,
    )


def rename_fields(error: RequestError) -> RequestError:
    """An error of the chat request, in which fields have the names that they have here."""
    message, param = str(error), error.param
    for pattern, own_name in _OWN_NAMES:
        message = re.sub(pattern, own_name, message)
        param = None if param is None else re.sub(pattern, own_name, param)
    return RequestError(message, param=param, code=error.code, status=error.status, type=error.type)


def _response_format(request: PromptFields) -> ResponseFormat | None:
    newer = None if request.output_config is None else request.output_config.format
    older = request.output_format
    if newer is not None and older is not None:
        raise RequestError("output_format is the older name of output_config.format: send one", param="output_format")
    wanted = newer or older
    if wanted is None:
        return None
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=wanted.schema))


def _check_stop_sequences(stop_sequences: list[str] | None) -> None:
    param = "stop_sequences"
    if stop_sequences is None:
        return
    if len(stop_sequences) > MAX_STOP_STRINGS:
        raise RequestError(f"{param} may hold {MAX_STOP_STRINGS} texts, not {len(stop_sequences)}", param=param)
    for index, text in enumerate(stop_sequences):
        if not 1 <= len(text) <= MAX_STOP_STRING_LENGTH:
            raise RequestError(
                f"{param}[{index}] must have 1 to {MAX_STOP_STRING_LENGTH} characters, not {len(text)}", param=param
            )
