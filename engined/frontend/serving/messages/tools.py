"""Tools of Anthropic's API as chat completions know them. Pure; raises RequestError that names Anthropic's field."""

from collections.abc import Sequence

import msgspec

from engined.errors import RequestError
from engined.frontend.api.message_tools import NO_SERVER_TOOL, MessageTool, MessageToolChoice
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.api.tools import ChatTool, FunctionDefinition, NamedFunction, ToolChoice, ToolChoiceObject
from engined.frontend.serving.constraints import check_depth

_REFUSED_IN_TOOL = refused_fields(MessageTool)


def to_chat_tools(tools: Sequence[MessageTool] | None) -> list[ChatTool] | None:
    """The same tools, nested; None if there are none. Raises RequestError for Anthropic's own tools."""
    return [_to_chat_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())] or None


def to_tool_choice(choice: MessageToolChoice | None, tools: Sequence[MessageTool] | None) -> ToolChoice | None:
    """The same choice. Raises RequestError if it asks for a call and there is no such tool."""
    if choice is None:
        return None
    if choice.name is not None and choice.type != "tool":
        raise RequestError(f'tool_choice.name needs the type "tool", not "{choice.type}"', param="tool_choice.name")
    match choice.type:
        case "none":
            return "none" if tools else None
        case "auto":
            return "auto" if tools else None
        case "any":
            _require_tools(tools)
            return "required"
        case "tool":
            _require_tools(tools)
            return _named(choice.name, tools or ())


def _to_chat_tool(tool: MessageTool, where: str) -> ChatTool:
    if tool.type not in (None, "custom"):
        raise unsupported(f"{where}.type", f"{tool.type[:64]!r} is one of Anthropic's own tools; {NO_SERVER_TOOL}")
    check_refused(tool, _REFUSED_IN_TOOL, where)
    for name in ("name", "input_schema"):
        if getattr(tool, name) is None:
            raise RequestError(
                f"{where}.{name} is required", param=f"{where}.{name}", code="missing_required_parameter"
            )
    check_depth(tool.input_examples, f"{where}.input_examples")
    function = FunctionDefinition(
        name=tool.name or "", description=_describe(tool), parameters=tool.input_schema, strict=tool.strict
    )
    return ChatTool(type="function", function=function)


def _describe(tool: MessageTool) -> str | None:
    """The description and the examples, for which chat templates have no place of their own."""
    if not tool.input_examples:
        return tool.description
    examples = "\n".join(msgspec.json.encode(example).decode() for example in tool.input_examples)
    return f"{tool.description or ''}\n\nExamples of its input:\n{examples}".lstrip()


def _require_tools(tools: Sequence[MessageTool] | None) -> None:
    if not tools:
        raise RequestError("tool_choice asks for a call, but there are no tools: send tools", param="tool_choice")


def _named(name: str | None, tools: Sequence[MessageTool]) -> ToolChoiceObject:
    param = "tool_choice.name"
    if name is None:
        raise RequestError(f'{param} is required with the type "tool"', param=param, code="missing_required_parameter")
    if all(tool.name != name for tool in tools):
        raise RequestError(f"{param}: there is no tool {name[:64]!r}; name one of tools", param=param)
    return ToolChoiceObject(type="function", function=NamedFunction(name=name))
