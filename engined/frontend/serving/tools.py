"""From `tools`, `tool_choice` and `parallel_tool_calls` to what the model is shown, and may or must call. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.api.tools import (
    MAX_TOOLS,
    NO_CUSTOM,
    TOOL_NAME_PATTERN,
    AllowedTools,
    ChatTool,
    FunctionDefinition,
    NamedFunction,
    ToolChoiceObject,
)
from engined.frontend.parsing.format import ToolFormat
from engined.frontend.parsing.json_calls import JSON
from engined.frontend.serving.constraints import check_depth

MAX_CALLS = 16
"""In one answer that a grammar constrains."""
_REFUSED_IN_TOOL = refused_fields(ChatTool)
_REFUSED_IN_CHOICE = refused_fields(ToolChoiceObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function, and its field in the request."""

    definition: FunctionDefinition
    where: str
    """For example "tools[0].function"."""

    @property
    def name(self) -> str:
        """The function's."""
        return self.definition.name

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return {"type": "object"} if self.definition.parameters is None else self.definition.parameters

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it. Many add up texts, so that nothing may be missing."""
        function = {
            "name": self.name,
            "description": self.definition.description or "",
            "parameters": self.definition.parameters or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What one request makes of tools."""

    mode: Literal["none", "auto", "required"] = "none"
    """Whether the answer holds no calls, may hold some, or is nothing but calls."""
    shown: tuple[Tool, ...] = ()
    """What the model is told of."""
    callable: tuple[Tool, ...] = ()
    """What it may call."""
    is_named: bool = False
    """The request names the one tool that is called."""
    is_parallel: bool = True
    """Otherwise an answer has one call at most."""

    @property
    def is_strict(self) -> bool:
        """Whether calls must be held to their schemas although none is required."""
        return any(tool.definition.strict for tool in self.callable)


def resolve_tools(request: ChatCompletionRequest, tool_format: ToolFormat | None) -> ToolUse:
    """Raises RequestError if the fields are faulty, contradict each other, or ask for what `tool_format` cannot do."""
    tools = _check_tools(request.tools)
    choice = request.tool_choice
    if not tools and choice not in (None, "none", "auto"):
        raise RequestError("tool_choice needs tools: send them, or leave it out", param="tool_choice")
    if not tools or choice == "none":
        return ToolUse()
    if tool_format is None:
        raise RequestError(
            "tools: this server reads no calls, as --tool-call-parser none wants it: leave it out",
            param="tools",
            code="unsupported_parameter",
        )
    is_parallel = request.parallel_tool_calls is not False
    if not isinstance(choice, ToolChoiceObject):
        mode: Literal["auto", "required"] = "required" if choice == "required" else "auto"
        return ToolUse(mode=mode, shown=tools, callable=tools, is_parallel=is_parallel)
    check_refused(choice, _REFUSED_IN_CHOICE, "tool_choice")
    if choice.type == "function":
        named = _find(choice.function, tools, "tool_choice.function")
        return ToolUse(mode="required", shown=tools, callable=(named,), is_named=True, is_parallel=is_parallel)
    allowed = _check_allowed(choice, tools)
    return ToolUse(mode=allowed[0], shown=tools, callable=allowed[1], is_parallel=is_parallel)


def max_calls(use: ToolUse, tool_format: ToolFormat) -> int:
    """How many calls a grammar lets through.

    One in the generic format: models whose templates know no tools were not trained to find the end of a list.
    """
    is_single = tool_format.name == JSON.name or (tool_format.syntax is not None and tool_format.syntax.is_single)
    return 1 if is_single or use.is_named or not use.is_parallel else MAX_CALLS


def _check_tools(tools: Sequence[ChatTool] | None) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if not 1 <= len(tools) <= MAX_TOOLS:
        raise RequestError(f"tools must hold 1 to {MAX_TOOLS} tools, not {len(tools)}", param="tools")
    checked: dict[str, Tool] = {}
    for index, tool in enumerate(tools):
        known = _check_tool(tool, f"tools[{index}]")
        if known.name in checked:
            param = f"{known.where}.name"
            raise RequestError(f"{param}: two tools are called {known.name!r}: rename one", param=param)
        checked[known.name] = known
    return tuple(checked.values())


def _check_tool(tool: ChatTool, where: str) -> Tool:
    if tool.type != "function":
        remedy = NO_CUSTOM if tool.type == "custom" else 'send the type "function"'
        raise unsupported(f"{where}.type", remedy)
    check_refused(tool, _REFUSED_IN_TOOL, where)
    if tool.function is None:
        raise _missing(f"{where}.function")
    if re.fullmatch(TOOL_NAME_PATTERN, tool.function.name) is None:
        param = f"{where}.function.name"
        raise RequestError(f"{param} must have 1 to 64 letters, digits, dashes or underscores", param=param)
    if tool.function.parameters is not None:
        check_depth(tool.function.parameters, f"{where}.function.parameters")
    return Tool(definition=tool.function, where=f"{where}.function")


def _check_allowed(
    choice: ToolChoiceObject, tools: Sequence[Tool]
) -> tuple[Literal["auto", "required"], tuple[Tool, ...]]:
    if choice.type != "allowed_tools":
        raise unsupported("tool_choice.type", 'send "function" or "allowed_tools"')
    allowed: AllowedTools | None = choice.allowed_tools
    if allowed is None or not allowed.tools:
        raise _missing("tool_choice.allowed_tools" if allowed is None else "tool_choice.allowed_tools.tools")
    names = set()
    for index, entry in enumerate(allowed.tools):
        where = f"tool_choice.allowed_tools.tools[{index}]"
        if entry.type != "function":
            raise unsupported(f"{where}.type", 'send the type "function"')
        names.add(_find(entry.function, tools, f"{where}.function").name)
    return allowed.mode, tuple(tool for tool in tools if tool.name in names)


def _find(function: NamedFunction | None, tools: Sequence[Tool], where: str) -> Tool:
    if function is None:
        raise _missing(where)
    for tool in tools:
        if tool.name == function.name:
            return tool
    raise RequestError(f"{where}.name: {function.name[:64]!r} is not one of the tools", param=f"{where}.name")


def _missing(param: str) -> RequestError:
    return RequestError(f"{param} is required", param=param, code="missing_required_parameter")
