"""From the messages of a chat body to those that the chat template reads. Pure; called by `ChatServing`."""

from collections.abc import Sequence

from engined.errors import RequestError
from engined.frontend.api.chat import ChatMessage, ContentPart
from engined.frontend.api.fields import NO_MEDIA, NO_TOOLS
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.off_loop import LARGE_COUNT, call_off_loop
from engined.frontend.rendering.chat_template import Message

ROLES = ("system", "developer", "user", "assistant")
TOOL_ROLES = ("tool", "function")
MAX_NAME_LENGTH = 64
_REFUSED_IN_MESSAGE = refused_fields(ChatMessage)
_REFUSED_IN_PART = refused_fields(ContentPart)


def to_template_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """All messages, checked. Raises RequestError naming the message and its field."""
    if not messages:
        raise RequestError("messages must hold at least one message", param="messages")
    return [_to_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


async def convert_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """The same beside the event loop, if there are many."""
    num_parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    return await call_off_loop(to_template_messages, messages, is_large=len(messages) + num_parts > LARGE_COUNT)


def _to_message(message: ChatMessage, where: str) -> Message:
    check_refused(message, _REFUSED_IN_MESSAGE, where)
    if message.role in TOOL_ROLES:
        raise unsupported(f"{where}.role", f"{NO_TOOLS.partition(';')[0]}; send the result in a user message")
    if message.role not in ROLES:
        raise RequestError(
            f"{where}.role must be one of {', '.join(ROLES)}, not {message.role[:64]!r}", param=f"{where}.role"
        )
    if message.content is None and message.role != "assistant":
        raise RequestError(f"{where}.content is required", param=f"{where}.content")
    converted: Message = {"role": message.role, "content": _to_content(message.content, where)}
    if message.name is not None:
        if not (1 <= len(message.name) <= MAX_NAME_LENGTH and message.name.isprintable()):
            raise RequestError(
                f"{where}.name must have 1 to {MAX_NAME_LENGTH} printable characters", param=f"{where}.name"
            )
        converted["name"] = message.name
    return converted


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
