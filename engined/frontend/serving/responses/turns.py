"""From the items of a conversation to the messages of chat completions. Frontend process; pure.

What an answer says is several items, but one message: its reasoning, its text and its calls.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from engined.frontend.api.chat import ChatMessage, ContentPart
from engined.frontend.api.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    RefusalText,
)
from engined.frontend.api.tools import FunctionCall, ToolCall

Part = InputText | OutputText | RefusalText
AnswerItem = MessageItem | ReasoningItem | FunctionCallItem


def to_messages(items: Iterable[Item]) -> list[ChatMessage]:
    """The messages as /v1/chat/completions takes them.

    Reasoning belongs to what follows it, and at the end of an answer to what precedes it. A call that was cut off is
    left out: it cannot be written, and was never made.
    """
    messages: list[ChatMessage] = []
    for is_answer, group in groupby(items, key=_is_answer):
        convert = _answer_messages if is_answer else _other_messages
        messages += convert(group)
    return messages


def find_starts(items: Sequence[Item]) -> list[int]:
    """Where the conversation may begin when older items are left out: never behind a question or a call that is
    answered later."""
    return [0, *(index for index, item in enumerate(items) if index and _is_question(item))]


@dataclass(slots=True)
class _Answer:
    """A message of the assistant that is being put together."""

    reasoning: list[str] = field(default_factory=list)
    content: list[Part] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def is_followed_by(self, item: AnswerItem) -> bool:
        """Whether `item` begins another message."""
        match item:
            case ReasoningItem():
                return bool(self.content or self.calls)
            case MessageItem():
                return bool(self.content and not self.calls)
            case FunctionCallItem():
                return False

    def add(self, item: AnswerItem) -> None:
        match item:
            case ReasoningItem():
                self.reasoning += [part.text for part in item.content or item.summary]
            case MessageItem():
                self.content += item.content
            case FunctionCallItem() if item.status == "completed":
                function = FunctionCall(name=item.name, arguments=item.arguments)
                self.calls.append(ToolCall(id=item.call_id, function=function))

    def to_message(self) -> ChatMessage:
        return ChatMessage(
            role="assistant",
            content=_to_content(self.content) if self.content or not self.calls else None,
            reasoning_content="\n".join(self.reasoning) or None,
            tool_calls=self.calls or None,
        )


def _answer_messages(items: Iterable[Item]) -> list[ChatMessage]:
    answers = [_Answer()]
    for item in items:
        assert not isinstance(item, FunctionCallOutputItem)
        if answers[-1].is_followed_by(item):
            answers.append(_Answer())
        answers[-1].add(item)
    if len(answers) > 1 and not (answers[-1].content or answers[-1].calls):
        answers[-2].reasoning += answers.pop().reasoning
    return [answer.to_message() for answer in answers]


def _other_messages(items: Iterable[Item]) -> list[ChatMessage]:
    return list(map(_to_message, items))


def _to_message(item: Item) -> ChatMessage:
    if isinstance(item, FunctionCallOutputItem):
        content = item.output if isinstance(item.output, str) else _to_content(item.output)
        return ChatMessage(role="tool", tool_call_id=item.call_id, name=item.name, content=content)
    assert isinstance(item, MessageItem)
    return ChatMessage(role=item.role, content=_to_content(item.content))


def _is_answer(item: Item) -> bool:
    if isinstance(item, MessageItem):
        return item.role == "assistant"
    return not isinstance(item, FunctionCallOutputItem)


def _is_question(item: Item) -> bool:
    return isinstance(item, MessageItem) and item.role != "assistant"


def _to_content(parts: Sequence[Part]) -> str | list[ContentPart]:
    if not parts:
        return ""
    if len(parts) == 1:
        return _part_text(parts[0])
    return [ContentPart(type="text", text=_part_text(part)) for part in parts]


def _part_text(part: Part) -> str:
    return part.refusal if isinstance(part, RefusalText) else part.text
