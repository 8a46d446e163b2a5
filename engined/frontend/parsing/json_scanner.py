"""Where a JSON value that comes in pieces ends, and whether it is one at all. Frontend process; used by the parsers."""

import re
from typing import Literal

from engined.frontend.parsing.text_pieces import skip_whitespace

_MAX_DEPTH = 500
_MAX_SCALAR_LENGTH = 1000
_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_SCALAR_RUN = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")

_Mode = Literal["value", "value_or_end", "key", "key_or_end", "colon", "comma_or_end", "string", "escape", "scalar"]


class JsonScanner:
    """Reads one value, beginning with its first character, and checks each character by the grammar of RFC 8259.

    Values nested deeper, and numbers longer, than common parsers accept count as broken.
    """

    def __init__(self) -> None:
        self.status: Literal["open", "whole", "broken"] = "open"
        self._mode: _Mode = "value"
        self._closers: list[str] = []
        self._is_key = False
        self._cut = ""

    def read(self, text: str, position: int) -> int:
        """The position behind what belongs to the value. If the value is broken: that of the character that broke it,
        or, of a misspelt literal or number, that behind it."""
        while position < len(text) and self.status == "open":
            match self._mode:
                case "string":
                    position = self._read_string(text, position)
                case "escape":
                    position = self._read_escape(text, position)
                case "scalar":
                    position = self._read_scalar(text, position)
                case _:
                    position = self._read_structure(text, position)
        return position

    def _read_string(self, text: str, position: int) -> int:
        run = _STRING_RUN.match(text, position)
        assert run is not None
        position = run.end()
        if position == len(text):
            return position
        if text[position] == '"':
            if self._is_key:
                self._mode = "colon"
            else:
                self._end_value()
            return position + 1
        if text[position] == "\\":
            self._mode = "escape"
            return position
        return self._break(position)

    def _read_escape(self, text: str, position: int) -> int:
        # At most five characters are carried from one piece to the next.
        length = len(self._cut)
        sequence = self._cut + text[position : position + 6 - length]
        whole = _ESCAPE.match(sequence)
        if whole is not None:
            self._mode, self._cut = "string", ""
            return position + whole.end() - length
        if _CUT_ESCAPE.fullmatch(sequence):
            self._cut = sequence
            return len(text)
        cut = _CUT_ESCAPE.match(sequence)
        assert cut is not None
        return self._break(position + cut.end() - length)

    def _read_scalar(self, text: str, position: int) -> int:
        run = _SCALAR_RUN.match(text, position)
        assert run is not None
        self._cut += run[0]
        if len(self._cut) > _MAX_SCALAR_LENGTH:
            return self._break(run.end() - len(self._cut) + _MAX_SCALAR_LENGTH)
        if run.end() == len(text):
            return run.end()
        if not _SCALAR.fullmatch(self._cut):
            return self._break(run.end())
        self._cut = ""
        self._end_value()
        return run.end()

    def _read_structure(self, text: str, position: int) -> int:
        position = skip_whitespace(text, position)
        if position == len(text):
            return position
        character = text[position]
        match self._mode:
            case "colon" if character == ":":
                self._mode = "value"
            case "comma_or_end" if character == ",":
                self._mode = "key" if self._closers[-1] == "}" else "value"
            case "comma_or_end" | "value_or_end" | "key_or_end" if character == self._closers[-1]:
                self._closers.pop()
                self._end_value()
            case "key" | "key_or_end" if character == '"':
                self._mode, self._is_key = "string", True
            case "value" | "value_or_end":
                return self._begin_value(character, position)
            case _:
                return self._break(position)
        return position + 1

    def _begin_value(self, character: str, position: int) -> int:
        if character == '"':
            self._mode, self._is_key = "string", False
            return position + 1
        if character in "{[" and len(self._closers) < _MAX_DEPTH:
            self._closers.append("}" if character == "{" else "]")
            self._mode = "key_or_end" if character == "{" else "value_or_end"
            return position + 1
        if character in "-0123456789tfn":
            self._mode = "scalar"
            return position
        return self._break(position)

    def _end_value(self) -> None:
        if self._closers:
            self._mode = "comma_or_end"
        else:
            self.status = "whole"

    def _break(self, position: int) -> int:
        self.status = "broken"
        return position
