"""One call as a JSON object, or a list of them, that comes in pieces. Frontend process; used by the parsers of the
families that write so.
"""

from collections.abc import Callable
from typing import Literal

from engined.frontend.parsing.call_object import CallObject
from engined.frontend.parsing.events import OutputEvent
from engined.frontend.parsing.state_parser import State
from engined.frontend.parsing.text_pieces import skip_whitespace


class CallList:
    """Reads {call} or [{call}, {call}, ...]. A list without calls is broken, being no call."""

    def __init__(self, num_calls: int, is_name: Callable[[str], bool]) -> None:
        """`num_calls` came before. `is_name` tells whether a name can be that of a tool."""
        self.status: Literal["open", "whole", "broken"] = "open"
        self.num_calls = num_calls
        self._is_name = is_name
        self._phase: State = self._read_opening
        self._call = CallObject(num_calls, is_name)
        self._is_list = False
        self._read_parts: list[str] = []
        self._events: list[OutputEvent] = []

    @property
    def text(self) -> str:
        """What was read since the last call: content, if no call follows."""
        return "".join(self._read_parts) + self._call.text

    def read(self, text: str, position: int, events: list[OutputEvent]) -> int:
        """The position behind what belongs to the calls, or, if one is broken, behind what could still have."""
        self._events = events
        while position < len(text) and self.status == "open":
            position = self._phase(text, position)
        return position

    def _read_opening(self, text: str, position: int) -> int:
        position = self._skip(text, position)
        if position < len(text):
            self._phase = self._read_call
            if text[position] == "[":
                self._is_list = True
                return self._take_sign(text, position)
        return position

    def _read_call(self, text: str, position: int) -> int:
        position = self._call.read(text, position, self._events)
        if self._call.has_begun:
            self._read_parts = []
            self.num_calls = max(self.num_calls, self._call.index + 1)
        if self._call.status == "broken":
            self.status = "broken"
        elif self._call.status == "whole" and self._is_list:
            self._phase = self._read_separator
        elif self._call.status == "whole":
            self.status = "whole"
        return position

    def _read_separator(self, text: str, position: int) -> int:
        position = self._skip(text, position)
        if position == len(text):
            return position
        match text[position]:
            case "]":
                self.status = "whole"
                return position + 1
            case ",":
                self._call, self._phase = CallObject(self.num_calls, self._is_name), self._read_call
                return self._take_sign(text, position)
        self.status = "broken"
        return position

    def _skip(self, text: str, position: int) -> int:
        end = skip_whitespace(text, position)
        self._read_parts.append(text[position:end])
        return end

    def _take_sign(self, text: str, position: int) -> int:
        self._read_parts.append(text[position])
        return position + 1
