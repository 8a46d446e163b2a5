"""From the messages of Anthropic's API to those of chat completions. Pure; raises RequestError that names the block."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from engined.errors import RequestError
from engined.frontend.api.chat import ChatMessage, ContentPart
from engined.frontend.api.message_blocks import BLOCK_TYPES, NO_MEDIA, NO_SERVER_TOOLS, MessageBlock, TextOnlyBlock
from engined.frontend.api.messages import InputMessage, PromptFields
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.api.tools import FunctionCall, ToolCall
from engined.frontend.serving.constraints import check_depth

ROLES = ("user", "assistant", "system")
FAILED = "Error: "
"""Shows the model that a call failed: chat templates have no other way."""
_ROLE_OF_BLOCK = {
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
}
_PAYLOAD = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
}
"""The fields that only one type of block has."""
_REFUSED_IN_BLOCK = refused_fields(MessageBlock)
_REFUSED_IN_TEXT_BLOCK = refused_fields(TextOnlyBlock)

T = TypeVar("T")


def to_chat_messages(request: PromptFields) -> list[ChatMessage]:
    """The conversation; `system` is its first message, neighbours of one role are one, each tool_result is its own."""
    if not request.messages:
        raise RequestError("messages must hold at least one message", param="messages")
    conversation = _Conversation()
    if request.system is not None:
        conversation.add_system(request.system)
    for index, message in enumerate(request.messages):
        conversation.add(message, f"messages[{index}]")
    conversation.check_ending(f"messages[{len(request.messages) - 1}].content")
    return conversation.to_chat_messages()


def continues_answer(request: PromptFields) -> bool:
    """Whether the last message is the beginning of the answer."""
    return bool(request.messages) and request.messages[-1].role == "assistant"


@dataclass(slots=True, kw_only=True)
class _Turn:
    """One message of a chat, under way."""

    role: str
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    tool_call_id: str | None = None

    def to_chat_message(self) -> ChatMessage:
        parts = [ContentPart(type="text", text=text) for text in self.texts]
        return ChatMessage(
            role=self.role,
            content=parts if len(parts) > 1 else "".join(self.texts),
            tool_calls=self.calls or None,
            tool_call_id=self.tool_call_id,
            reasoning_content="\n".join(self.thoughts) or None,
        )


class _Conversation:
    """The turns so far, and the ids of their calls."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._call_ids: set[str] = set()

    def add_system(self, system: str | list[TextOnlyBlock]) -> None:
        texts = [system] if isinstance(system, str) else _block_texts(system, "system")
        if texts:
            self._turn("system").texts.extend(texts)

    def add(self, message: InputMessage, where: str) -> None:
        if message.role not in ROLES:
            raise RequestError(
                f"{where}.role must be one of {', '.join(ROLES)}, not {message.role[:64]!r}", param=f"{where}.role"
            )
        where = f"{where}.content"
        if isinstance(message.content, str):
            self._turn(message.role).texts.append(message.content)
            return
        if not message.content:
            raise RequestError(f"{where} is empty: send a text, or at least one block", param=where)
        for index, block in enumerate(message.content):
            _check_type(block, message.role, f"{where}[{index}]")
            self._add_block(message.role, block, f"{where}[{index}]")

    def check_ending(self, where: str) -> None:
        """An answer is continued where its text ends, so it must have some, and no call behind it."""
        last = self._turns[-1]
        if last.calls:
            raise RequestError(
                f"{where}: tool_use blocks need their tool_result blocks in a message behind", param=where
            )
        if last.role == "assistant" and not last.texts:
            raise RequestError(f"{where} has no text block that the answer could continue", param=where)

    def to_chat_messages(self) -> list[ChatMessage]:
        return [turn.to_chat_message() for turn in self._turns]

    def _turn(self, role: str) -> _Turn:
        """The last turn, if it is of this role, else a new one."""
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role=role))
        return self._turns[-1]

    def _add_block(self, role: str, block: MessageBlock, where: str) -> None:
        match block.type:
            case "text":
                self._turn(role).texts.append(_require(block.text, f"{where}.text"))
            case "thinking":
                self._turn(role).thoughts.append(_require(block.thinking, f"{where}.thinking"))
            case "redacted_thinking":
                self._turn(role)
            case "tool_use":
                call = _to_call(block, where)
                self._call_ids.add(call.id)
                self._turn(role).calls.append(call)
            case "tool_result":
                self._turns.append(self._to_result(block, where))

    def _to_result(self, block: MessageBlock, where: str) -> _Turn:
        param = f"{where}.tool_use_id"
        tool_use_id = _require(block.tool_use_id, param)
        if tool_use_id not in self._call_ids:
            raise RequestError(f"{param}: no earlier tool_use block has the id {tool_use_id[:64]!r}", param=param)
        content = block.content or ""
        text = content if isinstance(content, str) else "\n".join(_block_texts(content, f"{where}.content"))
        return _Turn(role="tool", texts=[FAILED + text if block.is_error else text], tool_call_id=tool_use_id)


def _check_type(block: MessageBlock, role: str, where: str) -> None:
    if block.type not in BLOCK_TYPES:
        remedy = NO_SERVER_TOOLS if "tool" in block.type else NO_MEDIA
        raise unsupported(f"{where}.type", f"blocks of type {block.type[:64]!r} cannot be read; {remedy}")
    check_refused(block, _REFUSED_IN_BLOCK, where)
    for type_, names in _PAYLOAD.items():
        for name in names:
            if block.type != type_ and getattr(block, name) is not None:
                raise RequestError(f"{where}.{name} needs the type {type_!r}: leave it out", param=f"{where}.{name}")
    expected = _ROLE_OF_BLOCK.get(block.type, role)
    if role != expected:
        raise RequestError(f"{where}: a {block.type} block belongs into a message of the {expected}", param=where)


def _to_call(block: MessageBlock, where: str) -> ToolCall:
    arguments = _require(block.input, f"{where}.input")
    check_depth(arguments, f"{where}.input")
    function = FunctionCall(
        name=_require(block.name, f"{where}.name"), arguments=msgspec.json.encode(arguments).decode()
    )
    return ToolCall(id=_require(block.id or None, f"{where}.id"), function=function)


def _block_texts(blocks: Sequence[TextOnlyBlock], where: str) -> list[str]:
    return [_block_text(block, f"{where}[{index}]") for index, block in enumerate(blocks)]


def _block_text(block: TextOnlyBlock, where: str) -> str:
    if block.type != "text":
        raise unsupported(f"{where}.type", f"blocks of type {block.type[:64]!r} cannot be read; {NO_MEDIA}")
    check_refused(block, _REFUSED_IN_TEXT_BLOCK, where)
    return _require(block.text, f"{where}.text")


def _require(value: T | None, param: str) -> T:
    if value is None:
        raise RequestError(f"{param} is required", param=param, code="missing_required_parameter")
    return value
