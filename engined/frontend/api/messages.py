"""Bodies of POST /v1/messages and /v1/messages/count_tokens: Anthropic's shape, text in, text out. Frontend process."""

from typing import Annotated, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.fields import MAX_STOP_STRING_LENGTH, MAX_STOP_STRINGS
from engined.frontend.api.support import Unsupported, accepted, honoured, refused

NO_MEDIA = "the model reads text only; leave the block out, or put its text into a text block"
NO_TOOLS = "tool calling is not available yet; leave it out and describe the tool, or its result, in a text block"
NO_THINKING = "reasoning is not available yet; leave it out"
NO_GRAMMAR = "structured output is not available yet; leave it out and ask for the format in a message"
CACHES_ANYWAY = "every common beginning of prompts is cached anyway."


class CacheControl(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where Anthropic's cache would end."""

    type: Annotated[Literal["ephemeral"], accepted(CACHES_ANYWAY)]
    ttl: Annotated[Literal["5m", "1h"] | None, accepted("cached blocks stay until their room is needed.")] = None


class MessageBlock(Struct, kw_only=True, forbid_unknown_fields=True):
    """One block of a message. Only text is implemented; the other payloads are named so that they can be refused."""

    type: Annotated[str, honoured('"text"; every other type is refused.', enum=["text"])]
    text: Annotated[str | None, honoured("The text.")] = None
    cache_control: Annotated[CacheControl | None, accepted(CACHES_ANYWAY)] = None
    citations: Annotated[Unsupported, refused("the model does not read citations; leave them out", [])] = UNSET
    source: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    title: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    context: Annotated[Unsupported, refused(NO_MEDIA)] = UNSET
    content: Annotated[Unsupported, refused(NO_TOOLS)] = UNSET
    id: Annotated[Unsupported, refused(NO_TOOLS)] = UNSET
    name: Annotated[Unsupported, refused(NO_TOOLS)] = UNSET
    input: Annotated[Unsupported, refused(NO_TOOLS)] = UNSET
    caller: Annotated[Unsupported, refused(NO_TOOLS)] = UNSET
    tool_use_id: Annotated[Unsupported, refused(NO_TOOLS)] = UNSET
    is_error: Annotated[Unsupported, refused(NO_TOOLS)] = UNSET
    thinking: Annotated[Unsupported, refused(NO_THINKING)] = UNSET
    signature: Annotated[Unsupported, refused(NO_THINKING)] = UNSET
    data: Annotated[Unsupported, refused(NO_THINKING)] = UNSET


class InputMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Annotated[str, honoured("user, assistant or system.", enum=["user", "assistant", "system"])]
    content: Annotated[str | list[MessageBlock], honoured("A text, or a list of text blocks.")]


class MessageMetadata(Struct, kw_only=True, forbid_unknown_fields=True):
    """Bookkeeping of Anthropic's own service."""

    user_id: Annotated[str | None, accepted("one local server knows no users.")] = None


class PromptFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What makes the prompt; the same in both endpoints."""

    messages: Annotated[
        list[InputMessage],
        honoured(
            "The conversation, oldest first. Neighbours of one role are one turn; if the last message is the "
            "assistant's, the answer continues it.",
            minItems=1,
        ),
    ]
    model: Annotated[str | None, honoured("A name from /v1/models; the served model if left out.")] = None
    system: Annotated[str | list[MessageBlock] | None, honoured("What comes before the conversation.")] = None
    cache_control: Annotated[CacheControl | None, accepted(CACHES_ANYWAY)] = None
    speed: Annotated[Literal["standard", "fast"] | None, accepted("there is one speed.")] = None
    tools: Annotated[Unsupported, refused(NO_TOOLS, [])] = UNSET
    tool_choice: Annotated[Unsupported, refused("there are no tools to choose from; leave it out")] = UNSET
    thinking: Annotated[
        Unsupported,
        refused('reasoning is not available yet; leave it out or send {"type": "disabled"}', {"type": "disabled"}),
    ] = UNSET
    output_config: Annotated[Unsupported, refused(NO_GRAMMAR, {})] = UNSET
    output_format: Annotated[Unsupported, refused(NO_GRAMMAR)] = UNSET
    context_management: Annotated[Unsupported, refused("leave old messages out yourself", {}, {"edits": []})] = UNSET
    mcp_servers: Annotated[Unsupported, refused(NO_TOOLS, [])] = UNSET


class CountTokensRequest(PromptFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/messages/count_tokens."""


class MessagesRequest(PromptFields, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/messages."""

    max_tokens: Annotated[
        int, honoured("Most tokens to generate; the context may end sooner.", minimum=1, maximum=2**31 - 1)
    ]
    stream: Annotated[bool | None, honoured("Answer in server-sent events.")] = None
    temperature: Annotated[
        float | None, honoured("Below 1e-5 is greedy. Default: the model's, else 1.", minimum=0, maximum=2)
    ] = None
    top_p: Annotated[
        float | None, honoured("Above 0. Default: the model's, else 1.", exclusiveMinimum=0, maximum=1)
    ] = None
    top_k: Annotated[
        int | None, honoured("0 or -1 is off. Default: the model's, else 0.", minimum=-1, maximum=2**31)
    ] = None
    stop_sequences: Annotated[
        list[str] | None,
        honoured(
            f"Up to {MAX_STOP_STRINGS} texts of 1 to {MAX_STOP_STRING_LENGTH} characters that end the answer.",
            maxItems=MAX_STOP_STRINGS,
        ),
    ] = None
    metadata: Annotated[MessageMetadata | None, accepted("one local server knows no users.")] = None
    service_tier: Annotated[Literal["auto", "standard_only"] | None, accepted("there is one tier.")] = None
    container: Annotated[Unsupported, refused("this server runs no code; leave it out")] = UNSET
    diagnostics: Annotated[Unsupported, refused("usage.cache_read_input_tokens tells what was cached")] = UNSET
    inference_geo: Annotated[Unsupported, refused("the model runs on this server; leave it out")] = UNSET
