"""From the messages of a chat body to those that the chat template reads. Pure; called by `ChatServing`."""

from collections.abc import Sequence

from engined.errors import RequestError
from engined.frontend.api.chat import ChatMessage, ContentPart
from engined.frontend.api.fields import NO_MEDIA
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.off_loop import LARGE_COUNT, call_off_loop
from engined.frontend.rendering.messages import Message
from engined.frontend.serving.chat_calls import to_template_calls

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_NAME_LENGTH = 64
_FIELDS_OF_ROLES = {
    "tool_calls": "assistant",
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "tool_call_id": "tool",
}
_REFUSED_IN_MESSAGE = refused_fields(ChatMessage)
_REFUSED_IN_PART = refused_fields(ContentPart)


def to_template_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """All messages, checked. Raises RequestError naming the message and its field."""
    if not messages:
        raise RequestError("messages must hold at least one message", param="messages")
    converted: list[Message] = []
    call_ids: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        converted.append(_to_message(message, where))
        call_ids.update(call.id for call in message.tool_calls or ())
        if message.role == "tool" and message.tool_call_id not in call_ids:
            raise RequestError(
                f"{where}.tool_call_id answers no call: an earlier message of the assistant must have it in tool_calls",
                param=f"{where}.tool_call_id",
            )
    return converted


async def convert_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """The same beside the event loop, if there are many."""
    num_parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    return await call_off_loop(to_template_messages, messages, is_large=len(messages) + num_parts > LARGE_COUNT)


def _to_message(message: ChatMessage, where: str) -> Message:
    check_refused(message, _REFUSED_IN_MESSAGE, where)
    _check_role(message, where)
    if message.content is None and message.role != "assistant":
        raise RequestError(f"{where}.content is required", param=f"{where}.content")
    converted: Message = {"role": message.role, "content": _to_content(message.content, where)}
    if message.name is not None:
        if not (1 <= len(message.name) <= MAX_NAME_LENGTH and message.name.isprintable()):
            raise RequestError(
                f"{where}.name must have 1 to {MAX_NAME_LENGTH} printable characters", param=f"{where}.name"
            )
        converted["name"] = message.name
    if message.tool_call_id is not None:
        converted["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        converted["tool_calls"] = to_template_calls(message.tool_calls, f"{where}.tool_calls")
    if (reasoning := _reasoning(message, where)) is not None:
        converted["reasoning_content"] = reasoning
    return converted


def _check_role(message: ChatMessage, where: str) -> None:
    if message.role == "function":
        raise unsupported(f"{where}.role", 'send the result with the role "tool" and the tool_call_id of its call')
    if message.role not in ROLES:
        raise RequestError(
            f"{where}.role must be one of {', '.join(ROLES)}, not {message.role[:64]!r}", param=f"{where}.role"
        )
    for name, role in _FIELDS_OF_ROLES.items():
        if getattr(message, name) is not None and message.role != role:
            raise RequestError(
                f"{where}.{name} belongs to a message of the role {role}, not {message.role}: leave it out",
                param=f"{where}.{name}",
            )
    if message.role == "tool" and message.tool_call_id is None:
        param = f"{where}.tool_call_id"
        raise RequestError(f"{param} is required", param=param, code="missing_required_parameter")


def _reasoning(message: ChatMessage, where: str) -> str | None:
    """Under whichever of its names; clients that took both from an answer may send both back."""
    if message.reasoning is None or message.reasoning_content in (None, message.reasoning):
        return message.reasoning if message.reasoning_content is None else message.reasoning_content
    param = f"{where}.reasoning"
    raise RequestError(f"{param} and reasoning_content differ: leave one of them out", param=param)


def _to_content(content: str | list[ContentPart] | None, where: str) -> str | list[dict[str, str]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not content:
        raise RequestError(f"{where}.content has no parts", param=f"{where}.content")
    return [
        {"type": "text", "text": _part_text(part, f"{where}.content[{position}]")}
        for position, part in enumerate(content)
    ]


def _part_text(part: ContentPart, where: str) -> str:
    if part.type not in ("text", "refusal"):
        raise unsupported(f"{where}.type", f"parts of type {part.type[:64]!r} cannot be read; {NO_MEDIA}")
    check_refused(part, _REFUSED_IN_PART, where)
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise RequestError(f"{where}.{part.type} is required", param=f"{where}.{part.type}")
    return text
