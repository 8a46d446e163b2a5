"""Tools as Anthropic's API knows them. Frontend process; part of the bodies in `messages`."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.message_blocks import CACHES_ANYWAY, CacheControl
from engined.frontend.api.support import Unsupported, accepted, honoured, refused
from engined.frontend.api.tools import TOOL_NAME_PATTERN

NO_SERVER_TOOL = (
    'this server runs no tools itself; leave it out, or describe a tool of your own with type "custom" and an '
    "input_schema"
)


class MessageTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool of the client. What only Anthropic's own tools have is named so that it can be refused."""

    type: Annotated[str | None, honoured('"custom", or left out.', enum=["custom", None])] = None
    name: Annotated[
        str | None, honoured("1 to 64 letters, digits, dashes or underscores. Required.", pattern=TOOL_NAME_PATTERN)
    ] = None
    description: Annotated[str | None, honoured("What it does, for the model to read.")] = None
    input_schema: Annotated[
        dict[str, Any] | None, honoured("The JSON Schema (draft 2020-12) of its input, an object. Required.")
    ] = None
    input_examples: Annotated[
        list[dict[str, Any]] | None, honoured("Inputs as they should be: shown to the model behind the description.")
    ] = None
    strict: Annotated[
        bool | None, honoured("true: with tool_choice auto, too, calls are held to the schema of each tool.")
    ] = None
    cache_control: Annotated[CacheControl | None, accepted(CACHES_ANYWAY)] = None
    eager_input_streaming: Annotated[bool | None, accepted("input is always streamed as it grows.")] = None
    defer_loading: Annotated[Unsupported, refused("there is no search for tools; send those that you need", False)] = (
        UNSET
    )
    allowed_callers: Annotated[Unsupported, refused("only the model calls tools; leave it out", ["direct"])] = UNSET
    allowed_domains: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    blocked_domains: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    caching: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    citations: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    configs: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    default_config: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    display_height_px: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    display_number: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    display_width_px: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    enable_zoom: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    max_characters: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    max_content_tokens: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    max_tokens: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    max_uses: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    mcp_server_name: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    model: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    response_inclusion: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    url_sources: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    use_cache: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET
    user_location: Annotated[Unsupported, refused(NO_SERVER_TOOL)] = UNSET


class MessageToolChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether tools are called."""

    type: Annotated[
        Literal["auto", "any", "tool", "none"],
        honoured("auto: as the model likes; any: at least one call; tool: the one that is named; none: no call."),
    ]
    name: Annotated[str | None, honoured("With type tool: which one.")] = None
    disable_parallel_tool_use: Annotated[bool | None, honoured("true: an answer has one call at most.")] = None
