"""The items of a conversation, from `input`. Frontend process; pure. From items to messages: `turns`."""

import uuid
from collections.abc import Iterable, Sequence
from typing import TypeGuard, cast, get_args

import msgspec

from engined.errors import RequestError
from engined.frontend.api.fields import NO_MEDIA
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.api.response_input import MAX_ITEMS, ResponseInputItem, ResponseInputPart
from engined.frontend.api.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningPart,
    RefusalText,
    Role,
    SummaryPart,
)
from engined.frontend.serving.constraints import check_depth

ROLES = get_args(Role)
MEDIA_PARTS = ("input_image", "input_file", "input_audio")
Part = InputText | OutputText | RefusalText
_FIELDS = {
    "message": ("role", "content", "phase"),
    "reasoning": ("content", "summary"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "name", "output"),
}
"""The fields of each kind of item, besides `type`, `id` and `status`."""
_OWN_FIELDS = tuple(dict.fromkeys(name for names in _FIELDS.values() for name in names))
_REFUSED_IN_ITEM = refused_fields(ResponseInputItem)
_REFUSED_IN_PART = refused_fields(ResponseInputPart)


def parse_input(value: str | list[ResponseInputItem]) -> list[Item]:
    """The items of one request, each with an id of its own. Raises RequestError naming the item."""
    if isinstance(value, str):
        return [_message("user", [InputText(text=value)])]
    if not value:
        raise RequestError("input is empty: send a text or at least one item", param="input")
    if len(value) > MAX_ITEMS:
        raise RequestError(f"input may hold {MAX_ITEMS} items, not {len(value)}", param="input")
    return [_parse_item(item, f"input[{index}]") for index, item in enumerate(value)]


def check_results(items: Sequence[Item], earlier: Iterable[Item]) -> None:
    """Raises RequestError for a result among `items`, those of `input`, without its call before it."""
    call_ids = {item.call_id for item in earlier if _is_whole_call(item)}
    for index, item in enumerate(items):
        if _is_whole_call(item):
            call_ids.add(item.call_id)
        elif isinstance(item, FunctionCallOutputItem) and item.call_id not in call_ids:
            param = f"input[{index}].call_id"
            raise RequestError(
                f"{param}: no function_call before it has the call_id {item.call_id[:64]!r}; send that item as well, "
                "or continue the response that made the call with previous_response_id",
                param=param,
            )


def new_id(prefix: str) -> str:
    """An id that no other item has; `prefix` tells its kind."""
    return f"{prefix}_{uuid.uuid4().hex}"


def _is_whole_call(item: Item) -> TypeGuard[FunctionCallItem]:
    return isinstance(item, FunctionCallItem) and item.status == "completed"


def _parse_item(item: ResponseInputItem, where: str) -> Item:
    kind = item.type or "message"
    if kind not in _FIELDS:
        raise unsupported(f"{where}.type", _remedy(kind))
    check_refused(item, _REFUSED_IN_ITEM, where)
    for name in _OWN_FIELDS:
        if getattr(item, name) is not None and name not in _FIELDS[kind]:
            raise RequestError(f"{where}.{name} is no field of a {kind} item; leave it out", param=f"{where}.{name}")
    match kind:
        case "reasoning":
            return _parse_reasoning(item, where)
        case "function_call":
            return _parse_call(item, where)
        case "function_call_output":
            return FunctionCallOutputItem(
                id=new_id("fco"),
                call_id=_required(item.call_id, f"{where}.call_id"),
                name=item.name,
                output=_parse_output(item.output, f"{where}.output"),
                status="completed",
            )
        case _:
            return _parse_message(item, where)


def _parse_message(item: ResponseInputItem, where: str) -> MessageItem:
    if item.role not in ROLES:
        given = "" if item.role is None else f", not {item.role[:64]!r}"
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}{given}", param=f"{where}.role")
    role = cast(Role, item.role)
    if item.content is None:
        raise _missing(f"{where}.content")
    if isinstance(item.content, str):
        return _message(role, [_text(role, item.content)])
    if not item.content:
        raise RequestError(f"{where}.content has no parts", param=f"{where}.content")
    return _message(role, [_parse_part(role, *numbered) for numbered in _numbered(item.content, f"{where}.content")])


def _parse_reasoning(item: ResponseInputItem, where: str) -> ReasoningItem:
    if isinstance(item.content, str):
        raise RequestError(
            f"{where}.content of a reasoning item must be a list of reasoning_text parts", param=f"{where}.content"
        )
    content, summary = (
        _numbered(item.content or (), f"{where}.content"),
        _numbered(item.summary or (), f"{where}.summary"),
    )
    return ReasoningItem(
        id=new_id("rs"),
        summary=[SummaryPart(text=_part_text(part, at, "summary_text")) for part, at in summary],
        content=[ReasoningPart(text=_part_text(part, at, "reasoning_text")) for part, at in content],
        status="completed",
    )


def _parse_call(item: ResponseInputItem, where: str) -> FunctionCallItem:
    is_whole = item.status != "incomplete"
    arguments = _required(item.arguments, f"{where}.arguments", may_be_empty=True)
    if is_whole:
        _check_arguments(arguments or "{}", f"{where}.arguments")
    return FunctionCallItem(
        id=new_id("fc"),
        call_id=_required(item.call_id, f"{where}.call_id"),
        name=_required(item.name, f"{where}.name"),
        arguments=arguments,
        status="completed" if is_whole else "incomplete",
    )


def _check_arguments(text: str, param: str) -> None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestError(
            f"{param} must be the text of a JSON object; send a call that was cut off with the status incomplete",
            param=param,
        )
    check_depth(value, param)


def _parse_output(output: str | list[ResponseInputPart] | None, where: str) -> str | list[InputText]:
    if output is None:
        raise _missing(where)
    if isinstance(output, str):
        return output
    return [InputText(text=_part_text(part, at, "input_text")) for part, at in _numbered(output, where)]


def _parse_part(role: Role, part: ResponseInputPart, where: str) -> Part:
    if part.type == "refusal" and role == "assistant":
        check_refused(part, _REFUSED_IN_PART, where)
        return RefusalText(refusal=_required(part.refusal, f"{where}.refusal", may_be_empty=True))
    # Clients mix the two types up, but the role alone says which text it is.
    expected = ("output_text", "input_text") if role == "assistant" else ("input_text", "output_text")
    return _text(role, _part_text(part, where, *expected))


def _part_text(part: ResponseInputPart, where: str, *expected: str) -> str:
    """The text of a part, whose type must be among `expected`; the first of them is the right one."""
    if part.type in MEDIA_PARTS:
        raise unsupported(f"{where}.type", NO_MEDIA)
    check_refused(part, _REFUSED_IN_PART, where)
    if part.type not in expected:
        raise RequestError(f"{where}.type must be {expected[0]} here, not {part.type[:64]!r}", param=f"{where}.type")
    return _required(part.text, f"{where}.text", may_be_empty=True)


def _numbered(parts: Sequence[ResponseInputPart], where: str) -> list[tuple[ResponseInputPart, str]]:
    return [(part, f"{where}[{index}]") for index, part in enumerate(parts)]


def _message(role: Role, content: list[Part]) -> MessageItem:
    return MessageItem(id=new_id("msg"), role=role, status="completed", content=content)


def _text(role: Role, text: str) -> Part:
    return OutputText(text=text) if role == "assistant" else InputText(text=text)


def _required(value: str | None, param: str, *, may_be_empty: bool = False) -> str:
    if value is None:
        raise _missing(param)
    if not value and not may_be_empty:
        raise RequestError(f"{param} is empty", param=param)
    return value


def _missing(param: str) -> RequestError:
    return RequestError(f"{param} is required", param=param, code="missing_required_parameter")


def _remedy(item_type: str) -> str:
    """What to do instead of sending an item of this type."""
    if item_type == "item_reference":
        return "send the item itself, or continue with previous_response_id"
    if item_type in ("custom_tool_call", "custom_tool_call_output"):
        return "send it as a function_call and a function_call_output"
    return f"items may be {', '.join(_FIELDS)}; send what it says in one of them"
