"""Blocks of the messages that clients of Anthropic's API send. Frontend process; part of the bodies in `messages`."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.support import Unsupported, accepted, honoured, refused

NO_MEDIA = "the model reads text only; leave the block out, or put its text into a text block"
NO_SERVER_TOOLS = "this server runs no tools itself; leave it out and describe it in a text block"
CACHES_ANYWAY = "every common beginning of prompts is cached anyway."
BLOCK_TYPES = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")


class CacheControl(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where Anthropic's cache would end."""

    type: Annotated[Literal["ephemeral"], accepted(CACHES_ANYWAY)]
    ttl: Annotated[Literal["5m", "1h"] | None, accepted("cached blocks stay until their room is needed.")] = None
    scope: Annotated[str | None, accepted("cached prompts are shared by the requests of one API key.")] = None


class BlockFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, and the payloads of media, which are named so that they can be refused."""

    text: Annotated[str | None, honoured("Of a text block.")] = None
    cache_control: Annotated[CacheControl | None, accepted(CACHES_ANYWAY)] = None
    citations: Annotated[Unsupported, refused("the model does not read citations; leave them out", [])] = UNSET
    source: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    title: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    context: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    transformations: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    file_id: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET


class TextOnlyBlock(BlockFields, kw_only=True, forbid_unknown_fields=True):
    """A block of the system prompt, or of the result of a tool."""

    type: Annotated[str, honoured('"text"; every other type is refused.', enum=["text"])]
    content: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    tool_name: Annotated[Unsupported, refused("all tools are in the prompt; send their names as text")] = UNSET


class MessageBlock(BlockFields, kw_only=True, forbid_unknown_fields=True):
    """A block of a message."""

    type: Annotated[str, honoured(f"{', '.join(BLOCK_TYPES)}; every other type is refused.", enum=list(BLOCK_TYPES))]
    id: Annotated[str | None, honoured("Of tool_use, the assistant's: the name of this call.")] = None
    name: Annotated[str | None, honoured("Of tool_use: the tool.")] = None
    input: Annotated[dict[str, Any] | None, honoured("Of tool_use: what the tool was called with.")] = None
    tool_use_id: Annotated[str | None, honoured("Of tool_result, the user's: the id of an earlier tool_use.")] = None
    content: Annotated[str | list[TextOnlyBlock] | None, honoured("Of tool_result: a text, or text blocks.")] = None
    is_error: Annotated[bool | None, honoured("Of tool_result: the model is shown that the call failed.")] = None
    thinking: Annotated[
        str | None, honoured("Of thinking, the assistant's; shown to the model where its template reads it.")
    ] = None
    signature: Annotated[str | None, accepted("thoughts are not signed.")] = None
    data: Annotated[str | None, accepted("redacted thoughts cannot be read; their blocks are left out.")] = None
    caller: Annotated[Unsupported, refused(NO_SERVER_TOOLS, {"type": "direct"})] = UNSET
    toolset_name: Annotated[Unsupported, refused(NO_SERVER_TOOLS)] = UNSET
