"""The shape of /v1/messages, whole and as events. Frontend process; one `MessageFormatter` a request.

Every answer has one block of text, also when its text is empty, so that clients find `content[0]`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from engined.errors import EnginedError
from engined.frontend.api.message_object import (
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Message,
    MessageDelta,
    MessageEnding,
    MessageStart,
    MessageStop,
    MessageUsage,
    TextBlock,
    TextDelta,
)
from engined.frontend.message_errors import message_error
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.serving.generation import Usage


class MessageFormatter:
    """Builds the message."""

    terminator = b""
    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, message_id: str, model: str, request_id: str) -> None:
        self._message_id = message_id
        self._model = model
        self._request_id = request_id
        self._has_begun = False
        self._ending: MessageEnding | None = None

    def begin(self) -> bytes:
        """Nothing: message_start tells what was cached, which is known with the first output."""
        return b""

    def chunk(self, output: ChoiceOutput, usage: Usage) -> bytes:
        """One delta, the first after the opening events; nothing if it has no text."""
        data = b"" if self._has_begun else self._opening(usage)
        self._has_begun = True
        if output.finish_reason is not None:
            self._ending = _ending(output)
        return data + (_event(ContentBlockDelta(delta=TextDelta(text=output.text))) if output.text else b"")

    def end(self, usage: Usage) -> bytes:
        """The events behind the last delta."""
        assert self._ending is not None
        delta = MessageDelta(delta=self._ending, usage=_usage(usage))
        return _event(ContentBlockStop()) + _event(delta) + _event(MessageStop())

    def error(self, error: EnginedError) -> bytes:
        """The error event."""
        return _event(message_error(error, self._request_id))

    def whole(self, outputs: Sequence[ChoiceOutput], usage: Usage) -> dict[str, Any]:
        """The message."""
        [output] = outputs
        whole: dict[str, Any] = msgspec.to_builtins(
            self._message([TextBlock(text=output.text)], _ending(output), usage)
        )
        return whole

    def _opening(self, usage: Usage) -> bytes:
        message = self._message([], None, usage)
        return _event(MessageStart(message=message)) + _event(ContentBlockStart(content_block=TextBlock(text="")))

    def _message(self, content: list[TextBlock], ending: MessageEnding | None, usage: Usage) -> Message:
        return Message(
            id=self._message_id,
            model=self._model,
            content=content,
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=_usage(usage),
        )


def _ending(output: ChoiceOutput) -> MessageEnding:
    if isinstance(output.stop_reason, str):
        return MessageEnding(stop_reason="stop_sequence", stop_sequence=output.stop_reason)
    return MessageEnding(
        stop_reason="max_tokens" if output.finish_reason == "length" else "end_turn", stop_sequence=None
    )


def _usage(usage: Usage) -> MessageUsage:
    return MessageUsage(
        input_tokens=usage.num_prompt_tokens - usage.num_cached_tokens,
        cache_read_input_tokens=usage.num_cached_tokens,
        output_tokens=usage.num_completion_tokens,
    )


def _event(event: Struct) -> bytes:
    """One event, named by the type that it carries."""
    name = str(event.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
