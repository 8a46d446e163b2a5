"""Tools as /v1/responses knows them: flat, unlike those of chat completions. Frontend process; part of the body in
`responses`, converted by `serving/responses/tools`."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.support import Unsupported, accepted, honoured, refused
from engined.frontend.api.tools import MAX_TOOLS, NO_CUSTOM, TOOL_NAME_PATTERN

NOT_HOSTED = "engined runs no tools itself; describe a function, and run it when the model calls it"
_OF_ANOTHER_TYPE = f"it belongs to a tool that is no function; {NO_CUSTOM}"


class OtherToolFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of tools that are not functions: named, so that the refusal can say why."""

    format: Annotated[Unsupported, refused(_OF_ANOTHER_TYPE)] = UNSET
    tools: Annotated[Unsupported, refused(_OF_ANOTHER_TYPE)] = UNSET
    execution: Annotated[Unsupported, refused(_OF_ANOTHER_TYPE)] = UNSET
    server_label: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    server_url: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    server_description: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    connector_id: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    authorization: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    headers: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    allowed_tools: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    require_approval: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    tunnel_id: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    vector_store_ids: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    max_num_results: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    ranking_options: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    filters: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    external_web_access: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    search_content_types: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    search_context_size: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    user_location: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    container: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    environment: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    display_height: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    display_width: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    action: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    background: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    input_fidelity: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    input_image_mask: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    model: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    moderation: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    output_compression: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    output_format: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    partial_images: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    quality: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET
    size: Annotated[Unsupported, refused(NOT_HOSTED)] = UNSET


class ResponseTool(OtherToolFields, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    type: Annotated[str, honoured('"function".', enum=["function"])]
    name: Annotated[
        str | None, honoured("1 to 64 letters, digits, dashes or underscores. Required.", pattern=TOOL_NAME_PATTERN)
    ] = None
    description: Annotated[str | None, honoured("What it does, for the model to read.")] = None
    parameters: Annotated[
        dict[str, Any] | None, honoured("The JSON Schema (draft 2020-12) of its arguments. Default: any object.")
    ] = None
    strict: Annotated[
        bool | None,
        honoured(
            "true: with tool_choice auto, too, calls are held to the schema of each tool. Default false, whereas "
            "OpenAI's is true."
        ),
    ] = None
    output_schema: Annotated[
        dict[str, Any] | None, accepted("the model reads the result itself, whatever its form.")
    ] = None
    allowed_callers: Annotated[Unsupported, refused("only the model calls tools; leave it out", ["direct"])] = UNSET
    defer_loading: Annotated[Unsupported, refused("the model always sees all tools; leave it out", False)] = UNSET


class AllowedResponseTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """One of the tools."""

    type: Annotated[str, honoured('"function".', enum=["function"])]
    name: Annotated[str | None, honoured("Which one. Required.")] = None


class ResponseToolChoiceObject(Struct, kw_only=True, forbid_unknown_fields=True):
    """A choice that names tools."""

    type: Annotated[str, honoured('"function" or "allowed_tools".', enum=["function", "allowed_tools"])]
    name: Annotated[str | None, honoured("With type function: the tool that must be called.")] = None
    mode: Annotated[
        Literal["auto", "required"] | None,
        honoured("With type allowed_tools: whether the model may call one of them, or must."),
    ] = None
    tools: Annotated[
        list[AllowedResponseTool] | None,
        honoured("With type allowed_tools: which may be called.", minItems=1, maxItems=MAX_TOOLS),
    ] = None


ResponseToolChoice = Literal["none", "auto", "required"] | ResponseToolChoiceObject
