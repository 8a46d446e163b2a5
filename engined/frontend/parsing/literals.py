"""Turns values as Python (or a family of models) writes them into JSON, while they grow. Frontend process; used by the
parsers of formats whose arguments are no JSON.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from engined.frontend.parsing.escapes import decode_escape
from engined.frontend.parsing.json_writer import escaped

MAX_DEPTH = 500
"""How deep arrays and objects may nest; what is deeper is broken."""

_CONSTANTS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_BARE = re.compile(r"[^,{}()\[\]<\"']+")
_BARE_KEY = re.compile(r"[^,{}()\[\]<\"':=]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralDialect:
    """How strings are written."""

    quotes: Mapping[str, bool]
    """The quotes, longer ones first, and whether a backslash is an escape between them."""


PYTHON = LiteralDialect(quotes={'"""': True, "'''": True, '"': True, "'": True})
"""Python's literals, which includes JSON."""


class Expect(Enum):
    """What comes next."""

    KEY = "key"
    SEPARATOR = "separator"
    VALUE = "value"
    COMMA = "comma"
    STRING = "string"
    BARE = "bare"
    NOTHING = "nothing"


@dataclass(slots=True)
class _Frame:
    """An open object or array."""

    closer: str
    separator: str | None
    """Between key and value; None in an array."""
    is_empty: bool = True


class LiteralTranscoder:
    """Reads one value from a text in pieces and writes it as JSON. Strings are written as they grow.

    More is understood than is correct: keys and strings without quotes, commas at the end, numbers like 1_000. Then
    `is_done`, or `is_broken` where the text is no such value.
    """

    def __init__(self, dialect: LiteralDialect) -> None:
        self.is_done = False
        self.is_broken = False
        self._dialect = dialect
        self._bodies = {
            quote: re.compile(rf"[^{re.escape(quote[0])}{re.escape(chr(92)) if escapes else ''}]+")
            for quote, escapes in dialect.quotes.items()
        }
        self._frames: list[_Frame] = []
        self._expect = Expect.VALUE
        self._quote = ""
        self._bare: list[str] = []
        self._is_key = False
        self._key: list[str] = []
        self._json: list[str] = []

    @property
    def is_in_quotes(self) -> bool:
        """Whether the text so far ends within a string."""
        return self._expect is Expect.STRING

    def open_arguments(self) -> None:
        """The text begins behind the bracket of `f(a=1, b=2)`, and ends with the other bracket."""
        self._open(")", "=")

    def take(self) -> str:
        """The JSON since the last time."""
        text = "".join(self._json)
        self._json.clear()
        return text

    def feed(self, text: str, position: int, *, is_over: bool = False) -> int:
        """Read on from `position`. Returns how far it came: what is left is to be given again, with more behind it,
        or comes after the value. `is_over`: nothing comes behind this text."""
        while position < len(text) and not self.is_done and not self.is_broken:
            after = self._read(text, position, is_over)
            if after is None:
                return position
            position = after
        if is_over and self._expect is Expect.BARE and not self._frames:
            self._end_bare()
        return position

    def _read(self, text: str, position: int, is_over: bool) -> int | None:
        """How far one step comes; None if it needs more text."""
        if self._expect is Expect.STRING:
            return self._read_string(text, position, is_over)
        if self._expect is Expect.BARE:
            return self._read_bare(text, position)
        if text[position].isspace():
            return position + 1
        return self._read_structure(text, position, is_over)

    def _read_structure(self, text: str, position: int, is_over: bool) -> int | None:
        character = text[position]
        frame = self._frames[-1] if self._frames else None
        if frame is not None and character == frame.closer and self._may_close(frame):
            return self._close(frame, position)
        if self._expect is Expect.COMMA and character == ",":
            self._expect = Expect.KEY if frame is not None and frame.separator else Expect.VALUE
            return position + 1
        if self._expect is Expect.SEPARATOR and frame is not None and character == frame.separator:
            self._json.append(": ")
            self._expect = Expect.VALUE
            return position + 1
        if self._expect in (Expect.KEY, Expect.VALUE):
            return self._read_beginning(text, position, is_over)
        self.is_broken = True
        return position

    def _read_beginning(self, text: str, position: int, is_over: bool) -> int | None:
        """Of a key or a value."""
        character = text[position]
        self._is_key = self._expect is Expect.KEY
        for quote in self._dialect.quotes:
            if text.startswith(quote, position):
                self._begin_element()
                self._quote = quote
                self._expect = Expect.STRING
                if not self._is_key:
                    self._json.append('"')
                return position + len(quote)
            if not is_over and quote.startswith(text[position : position + len(quote)]):
                return None
        if character in _CLOSERS and not self._is_key and len(self._frames) < MAX_DEPTH:
            self._begin_element()
            self._open(_CLOSERS[character], ":" if character == "{" else None)
            return position + 1
        if character in ",{}()[]<\"':=":
            self.is_broken = True
            return position
        self._begin_element()
        self._expect = Expect.BARE
        return position

    def _read_string(self, text: str, position: int, is_over: bool) -> int | None:
        quote = self._quote
        body = self._bodies[quote].match(text, position)
        if body is not None:
            self._write_string(escaped(body.group()))
            return body.end()
        if text.startswith(quote, position):
            self._end_string()
            return position + len(quote)
        if self._dialect.quotes[quote] and text[position] == "\\":
            escape = decode_escape(text, position, is_over=is_over)
            if escape is None:
                return None
            self._write_string(escape.json_text)
            return escape.end
        if not is_over and quote.startswith(text[position : position + len(quote)]):
            return None
        self._write_string(escaped(text[position]))
        return position + 1

    def _read_bare(self, text: str, position: int) -> int:
        found = (_BARE_KEY if self._is_key else _BARE).match(text, position)
        if found is None:
            self.is_broken = text[position] in "{([<\"'"
            if not self.is_broken:
                self._end_bare()
            return position
        self._bare.append(found.group())
        return found.end()

    def _end_bare(self) -> None:
        token = "".join(self._bare).strip()
        self._bare.clear()
        if self._is_key:
            self._end_key(json.dumps(token, ensure_ascii=False))
        else:
            self._json.append(bare_to_json(token))
            self._end_value()

    def _write_string(self, json_text: str) -> None:
        (self._key if self._is_key else self._json).append(json_text)

    def _end_string(self) -> None:
        if self._is_key:
            self._end_key(f'"{"".join(self._key)}"')
            self._key.clear()
        else:
            self._json.append('"')
            self._end_value()

    def _end_key(self, key: str) -> None:
        self._json.append(key)
        self._expect = Expect.SEPARATOR

    def _end_value(self) -> None:
        self.is_done = not self._frames
        self._expect = Expect.COMMA if self._frames else Expect.NOTHING

    def _begin_element(self) -> None:
        if not self._frames or (self._frames[-1].separator and self._expect is Expect.VALUE):
            return
        if not self._frames[-1].is_empty:
            self._json.append(", ")
        self._frames[-1].is_empty = False

    def _may_close(self, frame: _Frame) -> bool:
        return self._expect is Expect.COMMA or self._expect is (Expect.KEY if frame.separator else Expect.VALUE)

    def _open(self, closer: str, separator: str | None) -> None:
        self._frames.append(_Frame(closer, separator))
        self._json.append("[" if separator is None else "{")
        self._expect = Expect.VALUE if separator is None else Expect.KEY

    def _close(self, frame: _Frame, position: int) -> int:
        self._frames.pop()
        self._json.append("]" if frame.separator is None else "}")
        self._end_value()
        return position + 1


def bare_to_json(token: str) -> str:
    """A value without quotes: a constant or a number of JSON or Python, else a string."""
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if _JSON_NUMBER.fullmatch(token):
        return token
    try:
        return str(int(token, 0))
    except ValueError:
        pass
    try:
        number = float(token)
    except ValueError:
        return json.dumps(token, ensure_ascii=False)
    return repr(number) if math.isfinite(number) else json.dumps(token, ensure_ascii=False)
