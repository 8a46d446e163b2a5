"""Tools of /v1/responses: checked, and then those of chat completions. Frontend process; pure.

What tools of chat completions can get wrong as well (names, schemas, a choice without tools) is checked there.
"""

from collections.abc import Sequence

from engined.errors import RequestError
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.api.response_object import AllowedToolsChoice, FunctionChoice, FunctionTool, ShownToolChoice
from engined.frontend.api.response_tools import (
    NOT_HOSTED,
    AllowedResponseTool,
    ResponseTool,
    ResponseToolChoice,
    ResponseToolChoiceObject,
)
from engined.frontend.api.tools import (
    NO_CUSTOM,
    AllowedTool,
    AllowedTools,
    ChatTool,
    FunctionDefinition,
    NamedFunction,
    ToolChoice,
    ToolChoiceObject,
)

CLIENT_TOOLS = ("custom", "namespace", "tool_search", "local_shell", "shell", "apply_patch")
"""Types of tools whose calls the client runs, although they are not functions."""
_REFUSED_IN_TOOL = refused_fields(ResponseTool)


def parse_tools(tools: Sequence[ResponseTool] | None) -> list[FunctionTool]:
    """The functions. Raises RequestError naming the tool that is none."""
    return [_parse_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]


def parse_tool_choice(choice: ResponseToolChoice | None) -> ShownToolChoice:
    """The choice. Raises RequestError naming what is missing, or is no function."""
    if choice is None:
        return "auto"
    if not isinstance(choice, ResponseToolChoiceObject):
        return choice
    if choice.type != "allowed_tools":
        return _parse_function_choice(choice.type, choice.name, "tool_choice")
    if choice.mode is None:
        raise _missing("tool_choice.mode")
    if not choice.tools:
        raise _missing("tool_choice.tools")
    tools = [_parse_allowed(tool, f"tool_choice.tools[{index}]") for index, tool in enumerate(choice.tools)]
    return AllowedToolsChoice(mode=choice.mode, tools=tools)


def to_chat_tools(tools: Sequence[FunctionTool]) -> list[ChatTool] | None:
    """The same functions, nested; None if there are none."""
    return [
        ChatTool(
            type="function",
            function=FunctionDefinition(
                name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
            ),
        )
        for tool in tools
    ] or None


def to_chat_tool_choice(choice: ShownToolChoice) -> ToolChoice:
    """The same choice, nested."""
    match choice:
        case FunctionChoice(name=name):
            return ToolChoiceObject(type="function", function=NamedFunction(name=name))
        case AllowedToolsChoice(mode=mode, tools=tools):
            allowed = [AllowedTool(type="function", function=NamedFunction(name=tool.name)) for tool in tools]
            return ToolChoiceObject(type="allowed_tools", allowed_tools=AllowedTools(mode=mode, tools=allowed))
        case _:
            return choice


def _parse_tool(tool: ResponseTool, where: str) -> FunctionTool:
    _check_type(tool.type, where)
    check_refused(tool, _REFUSED_IN_TOOL, where)
    if tool.name is None:
        raise _missing(f"{where}.name")
    return FunctionTool(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=bool(tool.strict)
    )


def _parse_allowed(tool: AllowedResponseTool, where: str) -> FunctionChoice:
    return _parse_function_choice(tool.type, tool.name, where)


def _parse_function_choice(type_: str, name: str | None, where: str) -> FunctionChoice:
    _check_type(type_, where)
    if name is None:
        raise _missing(f"{where}.name")
    return FunctionChoice(name=name)


def _check_type(type_: str, where: str) -> None:
    if type_ != "function":
        remedy = NO_CUSTOM if type_ in CLIENT_TOOLS else NOT_HOSTED
        raise unsupported(f"{where}.type", f"{type_[:64]!r} is no function; {remedy}")


def _missing(param: str) -> RequestError:
    return RequestError(f"{param} is required", param=param, code="missing_required_parameter")
