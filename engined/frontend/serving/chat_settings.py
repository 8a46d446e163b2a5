"""What a chat request asks for besides its messages, its sampling and its tools. Frontend process; pure."""

from dataclasses import dataclass, replace

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.output.request_state import OutputOptions
from engined.frontend.parsing.format import OutputFormat
from engined.frontend.rendering.chat_template import ChatOptions
from engined.frontend.serving.checks import (
    check_common,
    check_logprobs,
    check_max_tokens,
    resolve_time_limits,
)
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.reasoning import effort_variables, resolve_budget
from engined.frontend.serving.sampling import LogprobsWanted, resolve_num_choices, resolve_output_options
from engined.frontend.serving.time_limits import TimeLimits
from engined.frontend.serving.tools import ToolUse


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """Checked."""

    num_choices: int
    logprobs: LogprobsWanted
    max_tokens: int | None
    options: OutputOptions
    time_limits: TimeLimits
    reasoning_budget: int | None
    """Tokens; None if there is no bound."""


def resolve_chat_settings(request: ChatCompletionRequest, tools: ToolUse, context: ServingContext) -> ChatSettings:
    """Raises RequestError."""
    check_common(request, has_priority=context.has_priority)
    options = resolve_output_options(request, context.server.stream_interval)
    return ChatSettings(
        num_choices=resolve_num_choices(request),
        logprobs=_resolve_logprobs(request, context.server.max_logprobs),
        max_tokens=_resolve_max_tokens(request),
        options=replace(options, kept_tokens=_kept_tokens(context.output_format, tools)),
        time_limits=resolve_time_limits(request),
        reasoning_budget=resolve_budget(request, context.output_format.reasoning),
    )


def resolve_chat_options(request: ChatCompletionRequest, tools: ToolUse, context: ServingContext) -> ChatOptions:
    """How the conversation is rendered. Raises RequestError."""
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        raise RequestError(
            "continue_final_message continues the last message, add_generation_prompt begins a new one: "
            "set add_generation_prompt to false",
            param="continue_final_message",
        )
    known = context.renderer.template_variables(has_tools=bool(tools.shown))
    kwargs = dict(request.chat_template_kwargs or {})
    for name in kwargs:
        if name not in known:
            param = f"chat_template_kwargs.{name[:64]}"
            raise RequestError(
                f"{param}: the model's chat template has no such variable; leave it out",
                param=param,
                code="unsupported_parameter",
            )
    return ChatOptions(
        add_generation_prompt=not continues and request.add_generation_prompt is not False,
        continue_final_message=continues,
        tools=[tool.for_template() for tool in tools.shown],
        template_kwargs=kwargs | effort_variables(request.reasoning_effort, known),
    )


def _kept_tokens(output_format: OutputFormat, tools: ToolUse) -> frozenset[str]:
    """Those that the parsers of this request look for; without tools, calls are not among it."""
    reasoning, tool_format = output_format.reasoning, output_format.tools
    if tools.callable or (tool_format is not None and tool_format.parses_reasoning):
        return output_format.kept_tokens
    if reasoning is None:
        return frozenset()
    literals = (reasoning.begin, reasoning.end, reasoning.separator, reasoning.content_prefix)
    return frozenset(token for token in output_format.kept_tokens if any(token in literal for literal in literals))


def _resolve_logprobs(request: ChatCompletionRequest, max_logprobs: int) -> LogprobsWanted:
    top_logprobs = check_logprobs("top_logprobs", request.top_logprobs, max_logprobs)
    if top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    prompt = check_logprobs("prompt_logprobs", request.prompt_logprobs, max_logprobs)
    return LogprobsWanted(generated=(top_logprobs or 0) if request.logprobs else None, prompt=prompt)


def _resolve_max_tokens(request: ChatCompletionRequest) -> int | None:
    check_max_tokens("max_tokens", request.max_tokens, 1)
    check_max_tokens("max_completion_tokens", request.max_completion_tokens, 1)
    return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
