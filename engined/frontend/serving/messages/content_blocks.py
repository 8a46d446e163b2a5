"""The content blocks of one answer, from what its parser finds. Frontend process; each `MessageFormatter` owns one."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from engined.frontend.api.message_object import (
    SIGNATURE,
    ContentBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engined.frontend.serving.messages.tool_input import tool_input


@dataclass(slots=True)
class _Growing:
    """A block, and what its deltas have brought so far: thinking, text, or the JSON text of a call's input."""

    start: ContentBlock
    text: str = ""


class ContentBlocks:
    """Thinking, text and calls in the order in which the model wrote them; the last one may be open."""

    def __init__(self) -> None:
        self._blocks: list[_Growing] = []
        self._is_open = False

    def add(self, events: Sequence[OutputEvent]) -> list[Struct]:
        """Take what came next; returns the events that tell a client of it."""
        told: list[Struct] = []
        for event in events:
            match event:
                case ReasoningText(text):
                    told += self._continue(ThinkingBlock(thinking="", signature=""))
                    told += self._grow(text, ThinkingDelta(thinking=text))
                case ContentText(text):
                    told += self._continue(TextBlock(text=""))
                    told += self._grow(text, TextDelta(text=text))
                case ToolCallBegin(name=name, call_id=call_id):
                    told += self._begin(ToolUseBlock(id=call_id or "", name=name, input={}))
                case ToolCallArguments(text=text):
                    told += self._grow_input(text)
                case ToolCallEnd():
                    told += self._close()
        return told

    def finish(self) -> list[Struct]:
        """The answer is over: the events that close it. An answer without any block gets one of empty text."""
        told = [] if self._blocks else self._begin(TextBlock(text=""))
        return told + self._close()

    def whole(self) -> list[ContentBlock]:
        """All blocks, after `finish`."""
        return [_whole(block) for block in self._blocks]

    def _continue(self, start: ThinkingBlock | TextBlock) -> list[Struct]:
        """The open block, if it is of the same kind, else a new one."""
        if self._is_open and type(self._blocks[-1].start) is type(start):
            return []
        return self._begin(start)

    def _begin(self, start: ContentBlock) -> list[Struct]:
        told = self._close()
        self._blocks.append(_Growing(start))
        self._is_open = True
        return [*told, ContentBlockStart(index=len(self._blocks) - 1, content_block=start)]

    def _grow(self, text: str, delta: ThinkingDelta | TextDelta | InputJsonDelta) -> list[Struct]:
        self._blocks[-1].text += text
        return [ContentBlockDelta(index=len(self._blocks) - 1, delta=delta)]

    def _grow_input(self, text: str) -> list[Struct]:
        """Anthropic's own client cannot read a beginning that is nothing but whitespace."""
        if not self._blocks[-1].text:
            text = text.lstrip()
        return self._grow(text, InputJsonDelta(partial_json=text)) if text else []

    def _close(self) -> list[Struct]:
        if not self._is_open:
            return []
        self._is_open = False
        index = len(self._blocks) - 1
        stop = ContentBlockStop(index=index)
        if isinstance(self._blocks[-1].start, ThinkingBlock):
            return [ContentBlockDelta(index=index, delta=SignatureDelta(signature=SIGNATURE)), stop]
        return [stop]


def _whole(block: _Growing) -> ContentBlock:
    match block.start:
        case ThinkingBlock():
            return ThinkingBlock(thinking=block.text, signature=SIGNATURE)
        case TextBlock():
            return TextBlock(text=block.text)
        case ToolUseBlock(id=call_id, name=name):
            return ToolUseBlock(id=call_id, name=name, input=tool_input(block.text))
