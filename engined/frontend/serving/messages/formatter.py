"""The shape of /v1/messages, whole and as events. Frontend process; one `MessageFormatter` a request."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from engined.errors import EnginedError
from engined.frontend.api.message_object import (
    ContentBlock,
    Message,
    MessageDelta,
    MessageEnding,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputTokensDetails,
    StopReason,
)
from engined.frontend.message_errors import message_error
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.serving.generation import Usage
from engined.frontend.serving.messages.content_blocks import ContentBlocks
from engined.frontend.serving.parsed_choices import MessageParsing, ParsedChoices, ParsedMessage


class MessageFormatter:
    """Builds the message of a request, which has one choice."""

    terminator = b""
    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, message_id: str, model: str, request_id: str, parsing: MessageParsing) -> None:
        self._message_id = message_id
        self._model = model
        self._request_id = request_id
        self._parsed = ParsedChoices(parsing, 1, call_id_prefix="toolu_")
        self._blocks = ContentBlocks()
        self._has_begun = False
        self._ending: MessageEnding | None = None

    def begin(self) -> bytes:
        """Nothing: message_start tells what was cached, which is known with the first output."""
        return b""

    def chunk(self, output: ChoiceOutput, usage: Usage) -> bytes:
        """What an output adds to the blocks, the first time after message_start; nothing if it adds nothing."""
        opening = b"" if self._has_begun else _event(MessageStart(message=self._message([], None, usage)))
        self._has_begun = True
        return opening + b"".join(map(_event, self._take(output, usage)))

    def end(self, usage: Usage) -> bytes:
        """The events behind the last delta."""
        assert self._ending is not None
        delta = MessageDelta(delta=self._ending, usage=_usage(usage))
        return b"".join(map(_event, [*self._blocks.finish(), delta, MessageStop()]))

    def error(self, error: EnginedError) -> bytes:
        """The error event."""
        return _event(message_error(error, self._request_id))

    def whole(self, outputs: Sequence[ChoiceOutput], usage: Usage) -> dict[str, Any]:
        """The message."""
        [output] = outputs
        self._take(output, usage)
        self._blocks.finish()
        whole: dict[str, Any] = msgspec.to_builtins(self._message(self._blocks.whole(), self._ending, usage))
        return whole

    def _take(self, output: ChoiceOutput, usage: Usage) -> list[Struct]:
        events = self._parsed.take(output, usage)
        if output.finish_reason is not None:
            self._ending = _ending(output, self._parsed.messages[0])
        return self._blocks.add(events)

    def _message(self, content: list[ContentBlock], ending: MessageEnding | None, usage: Usage) -> Message:
        return Message(
            id=self._message_id,
            model=self._model,
            content=content,
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=_usage(usage),
        )


def _ending(output: ChoiceOutput, message: ParsedMessage) -> MessageEnding:
    """Calls are named here also where the request demanded them, and a stop sequence also behind calls."""
    if output.finish_reason == "stop" and isinstance(output.stop_reason, str):
        return MessageEnding(stop_reason="stop_sequence", stop_sequence=output.stop_reason)
    stop_reason: StopReason = "end_turn"
    if output.finish_reason == "length":
        stop_reason = "max_tokens"
    elif message.calls and all(call.is_whole for call in message.calls):
        stop_reason = "tool_use"
    return MessageEnding(stop_reason=stop_reason, stop_sequence=None)


def _usage(usage: Usage) -> MessageUsage:
    return MessageUsage(
        input_tokens=usage.num_prompt_tokens - usage.num_cached_tokens,
        cache_read_input_tokens=usage.num_cached_tokens,
        output_tokens=usage.num_completion_tokens,
        output_tokens_details=OutputTokensDetails(thinking_tokens=usage.num_reasoning_tokens),
    )


def _event(event: Struct) -> bytes:
    """One event, named by the type that it carries."""
    name = str(event.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
