"""Calls in earlier answers of a conversation: checked, as the chat template reads them. Pure; see `chat_messages`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from engined.errors import RequestError
from engined.frontend.api.parser import check_refused, refused_fields, unsupported
from engined.frontend.api.tools import NO_CUSTOM, ToolCall
from engined.frontend.serving.constraints import check_depth

_REFUSED_IN_CALL = refused_fields(ToolCall)


def to_template_calls(calls: Sequence[ToolCall], where: str) -> list[dict[str, Any]]:
    """All calls of one message. Raises RequestError naming the call and its field."""
    return [_to_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _to_call(call: ToolCall, where: str) -> dict[str, Any]:
    if call.type != "function":
        remedy = NO_CUSTOM if call.type == "custom" else 'send the type "function"'
        raise unsupported(f"{where}.type", remedy)
    check_refused(call, _REFUSED_IN_CALL, where)
    if not call.id:
        raise RequestError(f"{where}.id is empty: give the id that the result names", param=f"{where}.id")
    if call.function is None:
        param = f"{where}.function"
        raise RequestError(f"{param} is required", param=param, code="missing_required_parameter")
    arguments = call.function.arguments or "{}"
    _check_arguments(arguments, f"{where}.function.arguments")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _check_arguments(text: str, param: str) -> None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        value = None
    if not isinstance(value, dict):
        raise RequestError(f"{param} must be the text of a JSON object; leave out a call that was cut off", param=param)
    check_depth(value, param)
