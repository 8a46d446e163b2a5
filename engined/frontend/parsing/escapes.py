"""Backslash escapes in strings of Python and JSON. Frontend process; used by the transcoder of literals."""

import json
import re
from dataclasses import dataclass

_SIMPLE = {
    "n": r"\n",
    "t": r"\t",
    "r": r"\r",
    "b": r"\b",
    "f": r"\f",
    "a": r"\u0007",
    "v": r"\u000b",
    "\\": r"\\",
    "'": "'",
    '"': r"\"",
    "/": "/",
    "\n": "",
}
_NUM_DIGITS = {"x": 2, "u": 4, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]*")
_OCTAL = re.compile(r"[0-7]{1,3}")


@dataclass(frozen=True, slots=True)
class Escape:
    """What an escape stands for."""

    json_text: str
    """As it is written in a string of JSON."""
    end: int
    """Where the text goes on."""


def decode_escape(text: str, position: int, *, is_over: bool) -> Escape | None:
    """The escape whose backslash stands at `position`; None if more text is needed. What is none is a backslash, as
    in Python."""
    if position + 1 == len(text):
        return Escape(r"\\", position + 1) if is_over else None
    kind = text[position + 1]
    if kind in _SIMPLE:
        return Escape(_SIMPLE[kind], position + 2)
    if kind in _NUM_DIGITS:
        return _decode_hexadecimal(text, position, is_over)
    octal = _OCTAL.match(text, position + 1)
    if octal is None:
        return Escape(r"\\", position + 1)
    if octal.end() == len(text) and len(octal.group()) < 3 and not is_over:
        return None
    return Escape(_to_json(int(octal.group(), 8)), octal.end())


def _decode_hexadecimal(text: str, position: int, is_over: bool) -> Escape | None:
    kind = text[position + 1]
    end = position + 2 + _NUM_DIGITS[kind]
    digits = text[position + 2 : end]
    is_hexadecimal = _HEX.fullmatch(digits) is not None
    if is_hexadecimal and len(text) < end and not is_over:
        return None
    if not is_hexadecimal or len(text) < end or int(digits, 16) > 0x10FFFF:
        return Escape(r"\\", position + 1)
    # Halves of a surrogate pair stay escapes, so that JSON joins them.
    return Escape(rf"\u{digits}" if kind == "u" else _to_json(int(digits, 16)), end)


def _to_json(code_point: int) -> str:
    return json.dumps(chr(code_point), ensure_ascii=0xD800 <= code_point <= 0xDFFF)[1:-1]
