"""The answer of /v1/messages, whole and in events, and its errors: Anthropic's shapes. Frontend process.

The structs are what is encoded, and what /openapi.json describes.
"""

from typing import Any, Literal

from msgspec import Struct

MessageErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "timeout_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
]
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
SIGNATURE = "engined"
"""Of every block of thinking: clients drop those without one. It signs nothing, and is not read when it returns."""


class ThinkingBlock(Struct, kw_only=True, tag="thinking"):
    """What the model thought before it went on."""

    thinking: str
    signature: str


class TextBlock(Struct, kw_only=True, tag="text"):
    """The answer itself. An answer that has nothing else has one whose text is empty."""

    text: str


class ToolUseBlock(Struct, kw_only=True, tag="tool_use"):
    """A call. In content_block_start its input is still empty."""

    id: str
    name: str
    input: dict[str, Any]
    """Of a call that max_tokens cut off: what is whole of it."""


ContentBlock = ThinkingBlock | TextBlock | ToolUseBlock


class OutputTokensDetails(Struct, kw_only=True):
    """What the output was."""

    thinking_tokens: int
    """Known when the answer has ended."""


class MessageUsage(Struct, kw_only=True):
    """Tokens so far. The prompt has input_tokens + cache_read_input_tokens of them."""

    input_tokens: int
    """Tokens of the prompt that were computed."""
    cache_creation_input_tokens: int = 0
    """Always 0: what is computed is cached anyway, and costs nothing extra."""
    cache_read_input_tokens: int
    """Tokens of the prompt that were read from the prefix cache."""
    output_tokens: int
    output_tokens_details: OutputTokensDetails


class Message(Struct, kw_only=True, tag="message"):
    """An answer. In message_start it is still empty."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    """null only in message_start."""
    stop_sequence: str | None
    """The stop sequence that ended the answer; it is not part of the text."""
    usage: MessageUsage


class TokenCount(Struct, kw_only=True):
    """Answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageStart(Struct, kw_only=True, tag="message_start"):
    """The answer begins."""

    message: Message


class ContentBlockStart(Struct, kw_only=True, tag="content_block_start"):
    """A block begins. Only one is open at a time."""

    index: int
    content_block: ContentBlock


class ThinkingDelta(Struct, kw_only=True, tag="thinking_delta"):
    """A piece of thinking."""

    thinking: str


class SignatureDelta(Struct, kw_only=True, tag="signature_delta"):
    """The last piece of a block of thinking."""

    signature: str


class TextDelta(Struct, kw_only=True, tag="text_delta"):
    """A piece of text."""

    text: str


class InputJsonDelta(Struct, kw_only=True, tag="input_json_delta"):
    """A piece of the JSON text of a call's input."""

    partial_json: str


class ContentBlockDelta(Struct, kw_only=True, tag="content_block_delta"):
    """The block grows."""

    index: int
    delta: ThinkingDelta | SignatureDelta | TextDelta | InputJsonDelta


class ContentBlockStop(Struct, kw_only=True, tag="content_block_stop"):
    """The block is whole, or the answer was cut off."""

    index: int


class MessageEnding(Struct, kw_only=True):
    """Why the answer ended."""

    stop_reason: StopReason
    """tool_use: the model ended with calls, all of them whole."""
    stop_sequence: str | None


class MessageDelta(Struct, kw_only=True, tag="message_delta"):
    """How the answer ended, and the final usage."""

    delta: MessageEnding
    usage: MessageUsage


class MessageStop(Struct, kw_only=True, tag="message_stop"):
    """The last event."""


class Ping(Struct, kw_only=True, tag="ping"):
    """Comes at any time, where nothing else did for a while."""


class MessageErrorObject(Struct, kw_only=True):
    """What went wrong."""

    type: MessageErrorType
    message: str
    """A sentence that names the field and the remedy."""


class MessageError(Struct, kw_only=True, tag="error"):
    """The body of every answer with a status of 400 and above, and the last event of a stream that fails."""

    error: MessageErrorObject
    request_id: str | None = None
    """The same as in the header x-request-id."""


MESSAGE_EVENTS = (
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    Ping,
    MessageError,
)
