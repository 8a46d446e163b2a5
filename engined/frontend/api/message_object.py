"""The answer of /v1/messages, whole and in events, and its errors: Anthropic's shapes. Frontend process.

The structs are what is encoded, and what /openapi.json describes.
"""

from typing import Literal

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
StopReason = Literal["end_turn", "max_tokens", "stop_sequence"]


class TextBlock(Struct, kw_only=True, tag="text"):
    """The one block of every answer; its text may be empty."""

    text: str


class MessageUsage(Struct, kw_only=True):
    """Tokens so far. The prompt has input_tokens + cache_read_input_tokens of them."""

    input_tokens: int
    """Tokens of the prompt that were computed."""
    cache_creation_input_tokens: int = 0
    """Always 0: what is computed is cached anyway, and costs nothing extra."""
    cache_read_input_tokens: int
    """Tokens of the prompt that were read from the prefix cache."""
    output_tokens: int


class Message(Struct, kw_only=True, tag="message"):
    """An answer. In message_start it is still empty."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock]
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
    """Its block begins."""

    index: int = 0
    content_block: TextBlock


class TextDelta(Struct, kw_only=True, tag="text_delta"):
    """A piece of text."""

    text: str


class ContentBlockDelta(Struct, kw_only=True, tag="content_block_delta"):
    """The block grows."""

    index: int = 0
    delta: TextDelta


class ContentBlockStop(Struct, kw_only=True, tag="content_block_stop"):
    """The block is whole."""

    index: int = 0


class MessageEnding(Struct, kw_only=True):
    """Why the answer ended."""

    stop_reason: StopReason
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
