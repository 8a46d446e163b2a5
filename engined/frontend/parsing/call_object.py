"""A call written as a JSON object, {"name": ..., "arguments": {...}}, that comes in pieces. Frontend process; used by
the parsers of the families that write so.
"""

import json
from collections.abc import Callable
from typing import Literal

from engined.frontend.parsing.events import OutputEvent, ToolCallArguments, ToolCallBegin, ToolCallEnd
from engined.frontend.parsing.json_scanner import JsonScanner
from engined.frontend.parsing.state_parser import State
from engined.frontend.parsing.text_pieces import skip_whitespace

_ARGUMENT_KEYS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENT_KEYS, "type", "id")


class CallObject:
    """The call begins with its arguments, as soon as its name is known as well, and is whole when they are.

    Until it begins it may turn out to be something else: an object with other keys, with another name, or no JSON.
    """

    def __init__(self, index: int, is_name: Callable[[str], bool]) -> None:
        """`is_name` tells whether a name can be that of a tool."""
        self.status: Literal["open", "whole", "broken"] = "open"
        self.has_begun = False
        self.index = index
        self._is_name = is_name
        self._phase: State = self._read_opening
        self._scanner = JsonScanner()
        self._read_parts: list[str] = []
        self._value_parts: list[str] = []
        self._key = ""
        self._name: str | None = None
        self._early_arguments: str | None = None
        self._is_streaming = False
        self._events: list[OutputEvent] = []

    @property
    def text(self) -> str:
        """What was read, as long as the call has not begun: content, if it never does."""
        return "" if self.has_begun else "".join(self._read_parts)

    def read(self, text: str, position: int, events: list[OutputEvent]) -> int:
        """The position behind what belongs to the call, or, if it is broken, behind what could still have."""
        start, self._events = position, events
        while position < len(text) and self.status == "open":
            position = self._phase(text, position)
        if not self.has_begun:
            self._read_parts.append(text[start:position])
        return position

    def _read_opening(self, text: str, position: int) -> int:
        return self._read_sign("{", self._read_key_opening, text, position)

    def _read_key_opening(self, text: str, position: int) -> int:
        position = skip_whitespace(text, position)
        if position == len(text):
            return position
        if text[position] != '"':
            return self._break(position)
        self._scanner, self._value_parts, self._phase = JsonScanner(), [], self._read_key
        return position

    def _read_key(self, text: str, position: int) -> int:
        end = self._scanner.read(text, position)
        self._value_parts.append(text[position:end])
        if self._scanner.status == "broken":
            return self._break(end)
        if self._scanner.status == "whole":
            self._key = json.loads("".join(self._value_parts))
            if not self.has_begun and self._key not in _KEYS:
                return self._break(end)
            self._phase = self._read_colon
        return end

    def _read_colon(self, text: str, position: int) -> int:
        return self._read_sign(":", self._read_value_opening, text, position)

    def _read_value_opening(self, text: str, position: int) -> int:
        position = skip_whitespace(text, position)
        if position == len(text):
            return position
        self._scanner, self._value_parts, self._phase = JsonScanner(), [], self._read_value
        if self.has_begun:
            return position
        if self._key in _ARGUMENT_KEYS:
            if text[position] != "{":
                return self._break(position)
            if self._name is not None:
                self._begin(self._name)
                self._is_streaming = True
        elif self._key == "name" and text[position] != '"':
            return self._break(position)
        return position

    def _read_value(self, text: str, position: int) -> int:
        end = self._scanner.read(text, position)
        if self._is_streaming and end > position:
            self._events.append(ToolCallArguments(self.index, text[position:end]))
        elif not self.has_begun:
            self._value_parts.append(text[position:end])
        if self._scanner.status == "broken":
            return self._break(end)
        if self._scanner.status == "whole":
            self._phase = self._read_separator
            return self._end_value(end)
        return end

    def _end_value(self, position: int) -> int:
        if self._is_streaming:
            self._events.append(ToolCallEnd(self.index))
            self._is_streaming = False
        elif not self.has_begun and self._key in _ARGUMENT_KEYS:
            self._early_arguments = "".join(self._value_parts)
        elif not self.has_begun and self._key == "name":
            self._name = json.loads("".join(self._value_parts))
            if not self._name or not self._is_name(self._name):
                return self._break(position)
            if self._early_arguments is not None:
                self._begin(self._name)
                self._events += [ToolCallArguments(self.index, self._early_arguments), ToolCallEnd(self.index)]
        return position

    def _read_separator(self, text: str, position: int) -> int:
        position = skip_whitespace(text, position)
        if position < len(text) and text[position] == "}":
            if not self.has_begun:
                return self._break(position)
            self.status = "whole"
            return position + 1
        return self._read_sign(",", self._read_key_opening, text, position)

    def _read_sign(self, sign: str, next_phase: State, text: str, position: int) -> int:
        position = skip_whitespace(text, position)
        if position == len(text):
            return position
        if text[position] != sign:
            return self._break(position)
        self._phase = next_phase
        return position + 1

    def _begin(self, name: str) -> None:
        self.has_begun = True
        self._events.append(ToolCallBegin(self.index, name))

    def _break(self, position: int) -> int:
        self.status = "broken"
        return position
