"""Tools as chat completions know them: what may be called, what must be, and what was. Frontend process; part of the
body in `chat`."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.support import Unsupported, accepted, honoured, refused

MAX_TOOLS = 128
TOOL_NAME_PATTERN = "^[A-Za-z0-9_-]{1,64}$"
NO_CUSTOM = "describe a function with one string parameter instead"


class FunctionDefinition(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Annotated[str, honoured("1 to 64 letters, digits, dashes or underscores.", pattern=TOOL_NAME_PATTERN)]
    description: Annotated[str | None, honoured("What it does, for the model to read.")] = None
    parameters: Annotated[
        dict[str, Any] | None, honoured("The JSON Schema (draft 2020-12) of its arguments. Default: any object.")
    ] = None
    strict: Annotated[
        bool | None, honoured("true: with tool_choice auto, too, calls are held to the schema of each tool.")
    ] = None


class ChatTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool."""

    type: Annotated[str, honoured('"function".', enum=["function"])]
    function: Annotated[FunctionDefinition | None, honoured("The function. Required.")] = None
    custom: Annotated[Unsupported, refused(NO_CUSTOM)] = UNSET


class NamedFunction(Struct, kw_only=True, forbid_unknown_fields=True):
    """The name of a function."""

    name: Annotated[str, honoured("The name of one of the tools.")]


class AllowedTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """One of the tools."""

    type: Annotated[str, honoured('"function".', enum=["function"])]
    function: Annotated[NamedFunction | None, honoured("Which one. Required.")] = None


class AllowedTools(Struct, kw_only=True, forbid_unknown_fields=True):
    """Some of the tools. The model sees all of them."""

    mode: Annotated[Literal["auto", "required"], honoured("Whether the model may call one of them, or must.")]
    tools: Annotated[list[AllowedTool], honoured("Which may be called.", minItems=1)]


class ToolChoiceObject(Struct, kw_only=True, forbid_unknown_fields=True):
    """A choice that names tools."""

    type: Annotated[str, honoured('"function" or "allowed_tools".', enum=["function", "allowed_tools"])]
    function: Annotated[NamedFunction | None, honoured("With type function: the one that must be called.")] = None
    allowed_tools: Annotated[AllowedTools | None, honoured("With type allowed_tools.")] = None
    custom: Annotated[Unsupported, refused(NO_CUSTOM)] = UNSET


ToolChoice = Literal["none", "auto", "required"] | ToolChoiceObject


class FunctionCall(Struct, kw_only=True, forbid_unknown_fields=True):
    """What was called, and with what."""

    name: Annotated[str, honoured("The name of the function.")]
    arguments: Annotated[str, honoured("Its arguments: a JSON object, as a text.")]
    parsed_arguments: Annotated[Any, accepted("OpenAI's clients put what they make of arguments beside it.")] = None


class ToolCall(Struct, kw_only=True, forbid_unknown_fields=True):
    """A call in an earlier answer."""

    id: Annotated[str, honoured("The id that the message with the result names.", minLength=1)]
    type: Annotated[str, honoured('"function".', enum=["function"])] = "function"
    function: Annotated[FunctionCall | None, honoured("The call. Required.")] = None
    custom: Annotated[Unsupported, refused(NO_CUSTOM)] = UNSET
    index: Annotated[int | None, accepted("calls stand in their order.")] = None
