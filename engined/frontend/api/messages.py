"""Bodies of POST /v1/messages and /v1/messages/count_tokens: Anthropic's shape, text only. Frontend process."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.fields import MAX_STOP_STRING_LENGTH, MAX_STOP_STRINGS
from engined.frontend.api.message_blocks import CACHES_ANYWAY, CacheControl, MessageBlock, TextOnlyBlock
from engined.frontend.api.message_tools import MessageTool, MessageToolChoice
from engined.frontend.api.support import Unsupported, accepted, honoured, refused
from engined.frontend.api.tools import MAX_TOOLS

KEEP_ALL_THOUGHTS = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


class InputMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Annotated[str, honoured("user, assistant or system.", enum=["user", "assistant", "system"])]
    content: Annotated[str | list[MessageBlock], honoured("A text, or a list of blocks.")]


class MessageMetadata(Struct, kw_only=True, forbid_unknown_fields=True):
    """Bookkeeping of Anthropic's own service."""

    user_id: Annotated[str | None, accepted("one local server knows no users.")] = None


class ThinkingConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the model thinks before it answers."""

    type: Annotated[
        Literal["enabled", "adaptive", "disabled"],
        honoured(
            "enabled: it thinks, up to budget_tokens; adaptive: as it likes; disabled: as if thinking were left out."
        ),
    ]
    budget_tokens: Annotated[
        int | None,
        honoured(
            "With enabled, which needs it: most tokens of thinking, after which it is ended. Anthropic takes no less "
            "than 1024.",
            minimum=1,
            maximum=2**31 - 1,
        ),
    ] = None
    display: Annotated[
        Literal["summarized", "omitted"] | None,
        honoured("omitted: the answer has no blocks of thinking; else they hold all of it."),
    ] = None


class OutputFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer's text."""

    type: Annotated[Literal["json_schema"], honoured("JSON by a schema.")]
    schema: Annotated[dict[str, Any], honoured("The JSON Schema (draft 2020-12) that the text validates against.")]


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer, and how much effort it is worth."""

    effort: Annotated[
        Literal["low", "medium", "high", "xhigh", "max"] | None,
        honoured("Given to chat templates that know a reasoning_effort; changes nothing with the others."),
    ] = None
    format: Annotated[OutputFormat | None, honoured("What the text must be.")] = None


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
    system: Annotated[str | list[TextOnlyBlock] | None, honoured("What comes before the conversation.")] = None
    cache_control: Annotated[CacheControl | None, accepted(CACHES_ANYWAY)] = None
    speed: Annotated[Literal["standard", "fast"] | None, accepted("there is one speed.")] = None
    tools: Annotated[list[MessageTool] | None, honoured("What the model may call.", maxItems=MAX_TOOLS)] = None
    tool_choice: Annotated[MessageToolChoice | None, honoured("Default auto with tools.")] = None
    thinking: Annotated[
        ThinkingConfig | None,
        honoured("Left out, the model does not think, unless it always does; and then the answer does not show it."),
    ] = None
    output_config: Annotated[OutputConfig | None, honoured("The form of the answer.")] = None
    output_format: Annotated[OutputFormat | None, honoured("The older name of output_config.format.")] = None
    context_management: Annotated[
        Unsupported, refused("leave old messages out yourself", {}, {"edits": []}, KEEP_ALL_THOUGHTS)
    ] = UNSET
    mcp_servers: Annotated[Unsupported, refused("this server calls no others; send their tools as tools", [])] = UNSET


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
