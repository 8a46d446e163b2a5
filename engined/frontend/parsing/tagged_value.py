"""The value of one parameter as it stands between tags, made JSON while it grows. Frontend process; used by the parsers
of formats that write parameters one by one.
"""

import json

import orjson

from engined.frontend.parsing.json_writer import escaped
from engined.frontend.parsing.literals import PYTHON, LiteralTranscoder
from engined.frontend.parsing.parameter_types import type_of

_HEAD_LENGTH = 16
_STRING = frozenset({"string"})
_NULLABLE_STRING = frozenset({"string", "null"})
_WORDS = ("true", "false", "null", "True", "False", "None")


class TaggedValue:
    """Strings stand between the tags as they are, all else as JSON, or as Python writes it.

    Which it is, the schema tells. Strings, objects and arrays are given out as they grow; numbers and constants, being
    short, at the end, and so is what may be a string as well as something else.
    """

    def __init__(self, types: frozenset[str] | None) -> None:
        """`types` are those that the schema allows; None if it does not say."""
        self.is_broken = False
        """The text is no such object or array as it began to be."""
        self._types = types
        self._kind: str | None = "string" if types == _STRING else None
        self._held: list[str] = []
        self._transcoder = LiteralTranscoder(PYTHON)
        self._pending = ""
        self._is_quote_open = False

    @property
    def is_in_quotes(self) -> bool:
        """Whether the text so far ends within a string of an object or an array."""
        # One quote may be the first of three.
        return self._kind == "nested" and (self._transcoder.is_in_quotes or self._pending in ('"', "'"))

    def feed(self, text: str) -> str:
        """The JSON that the next piece of text adds."""
        if self._kind is None:
            text = "".join([*self._held, text])
            self._kind = self._decide(text)
            self._held.clear()
        if self._kind == "string":
            return self._grow_string(text)
        if self._kind == "nested":
            return self._grow_nested(text)
        self._held.append(text)
        return ""

    def close(self) -> str:
        """The JSON that the end of the value adds."""
        if self._kind == "string":
            return self._grow_string("") + '"'
        if self._kind == "nested":
            piece = self._grow_nested("", is_over=True)
            self.is_broken = self.is_broken or not self._transcoder.is_done
            return piece
        return _convert("".join(self._held), self._types)

    def cut(self) -> str:
        """What is held back, where the text breaks off within the value."""
        return "" if self._kind in ("string", "nested") else "".join(self._held).strip()

    def _decide(self, text: str) -> str | None:
        """Whether the value is given out as it grows, or "held" until its end; None while that is open. Looks at the
        first characters only, so that it does not matter in which pieces they came."""
        head = text[:_HEAD_LENGTH]
        start = head.lstrip()
        is_open = len(head) < _HEAD_LENGTH
        types = self._types
        if not start and is_open:
            return None
        if types is not None and "string" not in types:
            return "nested" if start[:1] in ("{", "[") else "held"
        if types != _NULLABLE_STRING and start[:1] in tuple("{[-0123456789"):
            return "held"
        words = ("null",) if types == _NULLABLE_STRING else _WORDS
        return None if is_open and any(word.startswith(start.rstrip()) for word in words) else "string"

    def _grow_string(self, text: str) -> str:
        opening = "" if self._is_quote_open else '"'
        self._is_quote_open = True
        return opening + escaped(text)

    def _grow_nested(self, text: str, *, is_over: bool = False) -> str:
        text = self._pending + text
        position = self._transcoder.feed(text, 0, is_over=is_over)
        self._pending = text[position:]
        if self._transcoder.is_broken or (self._transcoder.is_done and self._pending.strip()):
            self.is_broken = True
        if self._transcoder.is_done or self._transcoder.is_broken:
            self._pending = ""
        return self._transcoder.take()


def _convert(text: str, types: frozenset[str] | None) -> str:
    """A whole value as JSON: as the text says it, if the types allow it, else as a string."""
    stripped = text.strip()
    json_text = stripped if _is_json(stripped) else _from_python(stripped)
    is_string_possible = types is None or "string" in types
    if json_text is None or (is_string_possible and not _fits(orjson.loads(json_text), types)):
        return json.dumps(text, ensure_ascii=False)
    return json_text


def _fits(value: object, types: frozenset[str] | None) -> bool:
    name = type_of(value)
    return types is None or name in types or (name == "integer" and "number" in types)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _from_python(text: str) -> str | None:
    """The JSON of a constant, a list or a dictionary of Python; None if it is none."""
    if text in _WORDS or text.lower() in ("true", "false"):
        return {"none": "null"}.get(text.lower(), text.lower())
    if text[:1] not in ("{", "[", "("):
        return None
    transcoder = LiteralTranscoder(PYTHON)
    end = transcoder.feed(text, 0, is_over=True)
    json_text = transcoder.take()
    return json_text if transcoder.is_done and end == len(text) and _is_json(json_text) else None
