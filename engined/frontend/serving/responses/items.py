"""The items of a conversation: from `input` to items, and from items to chat messages. Frontend process; pure."""

import uuid
from typing import cast, get_args

from engined.errors import RequestError
from engined.frontend.api.chat import ChatMessage, ContentPart
from engined.frontend.api.fields import NO_MEDIA
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.api.response_object import InputText, ItemStatus, MessageItem, OutputText, RefusalText, Role
from engined.frontend.api.responses import MAX_ITEMS, NO_REASONING, ResponseInputItem, ResponseInputPart

ROLES = get_args(Role)
MEDIA_PARTS = ("input_image", "input_file", "input_audio")
TOOL_ITEMS = ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
Part = InputText | OutputText | RefusalText
_REFUSED_IN_ITEM = refused_fields(ResponseInputItem)
_REFUSED_IN_PART = refused_fields(ResponseInputPart)


def parse_input(value: str | list[ResponseInputItem]) -> list[MessageItem]:
    """The items of one request, each with an id of its own. Raises RequestError naming the item."""
    if isinstance(value, str):
        return [_item("user", [InputText(text=value)])]
    if not value:
        raise RequestError("input is empty: send a text or at least one item", param="input")
    if len(value) > MAX_ITEMS:
        raise RequestError(f"input may hold {MAX_ITEMS} items, not {len(value)}", param="input")
    return [_parse_item(item, f"input[{index}]") for index, item in enumerate(value)]


def to_message(item: MessageItem) -> ChatMessage:
    """The item as /v1/chat/completions takes it."""
    if len(item.content) == 1:
        return ChatMessage(role=item.role, content=_part_text(item.content[0]))
    parts = [ContentPart(type="text", text=_part_text(part)) for part in item.content]
    return ChatMessage(role=item.role, content=parts)


def answer_item(item_id: str, content: list[OutputText], status: ItemStatus) -> MessageItem:
    """The answer as an item."""
    return MessageItem(id=item_id, role="assistant", status=status, content=list(content))


def new_message_id() -> str:
    """An id that no other item has."""
    return f"msg_{uuid.uuid4().hex}"


def _item(role: Role, content: list[Part]) -> MessageItem:
    return MessageItem(id=new_message_id(), role=role, status="completed", content=content)


def _parse_item(item: ResponseInputItem, where: str) -> MessageItem:
    if item.type not in (None, "message"):
        raise unsupported(f"{where}.type", _remedy(item.type))
    check_refused(item, _REFUSED_IN_ITEM, where)
    if item.role not in ROLES:
        given = "" if item.role is None else f", not {item.role[:64]!r}"
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}{given}", param=f"{where}.role")
    role = cast(Role, item.role)
    if item.content is None:
        raise _missing(f"{where}.content")
    if isinstance(item.content, str):
        return _item(role, [_text(role, item.content)])
    if not item.content:
        raise RequestError(f"{where}.content has no parts", param=f"{where}.content")
    parts = [_parse_part(role, part, f"{where}.content[{index}]") for index, part in enumerate(item.content)]
    return _item(role, parts)


def _parse_part(role: Role, part: ResponseInputPart, where: str) -> Part:
    if part.type in MEDIA_PARTS:
        raise unsupported(f"{where}.type", NO_MEDIA)
    check_refused(part, _REFUSED_IN_PART, where)
    if part.type == "refusal" and role == "assistant":
        if part.refusal is None:
            raise _missing(f"{where}.refusal")
        return RefusalText(refusal=part.refusal)
    if part.type not in ("input_text", "output_text"):
        expected = "output_text" if role == "assistant" else "input_text"
        raise RequestError(
            f"{where}.type must be {expected} in a message of the role {role}, not {part.type[:64]!r}",
            param=f"{where}.type",
        )
    if part.text is None:
        raise _missing(f"{where}.text")
    return _text(role, part.text)


def _text(role: Role, text: str) -> Part:
    """Clients mix the two types up, but the role alone says which text it is."""
    return OutputText(text=text) if role == "assistant" else InputText(text=text)


def _missing(param: str) -> RequestError:
    return RequestError(f"{param} is required", param=param, code="missing_required_parameter")


def _remedy(item_type: str) -> str:
    """What to do instead of sending an item of this type."""
    if item_type in TOOL_ITEMS:
        return "tool calling is not available yet; send the result in a user message"
    if item_type == "reasoning":
        return NO_REASONING
    if item_type == "item_reference":
        return "send the item itself, or continue with previous_response_id"
    return "send items of type message"


def _part_text(part: Part) -> str:
    return part.refusal if isinstance(part, RefusalText) else part.text
