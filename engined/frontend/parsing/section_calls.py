"""Calls in a section of the answer, each a name and a JSON object between tags of their own. Frontend process; the
parser of DeepSeek V3 and V3.1 and of Kimi K2.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engined.frontend.parsing.events import ToolCallArguments, ToolCallBegin, ToolCallEnd
from engined.frontend.parsing.json_scanner import JsonScanner
from engined.frontend.parsing.marked_calls import MarkedCallsParser
from engined.frontend.parsing.state_parser import State
from engined.frontend.parsing.text_pieces import MarkerSearch, skip_whitespace

_MAX_NAME_LENGTH = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTags:
    """section_begin (call_begin NAME name_end ARGUMENTS call_end)... section_end"""

    section_begin: str
    call_begin: str
    name_end: str
    call_ends: tuple[str, ...]
    """Any of them."""
    section_end: str
    clean_name: Callable[[str], str] = str.strip
    """From what stands in the place of the name to the name."""


class SectionCallsParser(MarkedCallsParser):
    """A section without any call is content. Beside calls, other text in the section is dropped.

    Arguments that turn out to be no JSON go on as they are up to the end of their call, which then is not whole.
    """

    def __init__(self, tags: SectionTags) -> None:
        super().__init__(begins=(tags.section_begin,))
        self._tags = tags
        self._call_or_end = MarkerSearch(tags.call_begin, tags.section_end)
        self._name_end = MarkerSearch(tags.name_end, tags.call_begin, tags.section_end, *tags.call_ends)
        self._arguments_begin = MarkerSearch("{", *tags.call_ends)
        self._call_end = MarkerSearch(*tags.call_ends)
        self._scanner = JsonScanner()
        self._name = ""
        self._has_calls = False

    def _begin_call(self) -> State:
        self._has_calls = False
        return self._read_section

    def _read_section(self, text: str, position: int) -> int:
        found, marker = self._call_or_end.search(text, position)
        self._unclaimed.append(text[position:found])
        if marker is None:
            return self._keep_pending(text, found)
        self._unclaimed.append(marker)
        if marker == self._tags.call_begin:
            self._state = self._read_name
        else:
            self._end_section()
        return found + len(marker)

    def _end_section(self) -> None:
        section = "".join("".join(self._unclaimed).split())
        is_empty = section == self._tags.section_begin + self._tags.section_end
        if self._has_calls or is_empty:
            self._end_call()
        else:
            self._give_up_call()

    def _read_name(self, text: str, position: int) -> int:
        found, marker = self._name_end.search(text, position)
        is_too_long = found - position > _MAX_NAME_LENGTH
        if marker is None and not is_too_long:
            return self._keep_pending(text, position)
        if marker != self._tags.name_end or is_too_long:
            self._state = self._read_section
            return position
        self._name = self._tags.clean_name(text[position:found])
        self._unclaimed.append(text[position : found + len(marker)])
        self._state = self._read_arguments_begin if self._name else self._read_section
        return found + len(marker)

    def _read_arguments_begin(self, text: str, position: int) -> int:
        end = skip_whitespace(text, position)
        self._unclaimed.append(text[position:end])
        if end == len(text):
            return end
        is_possible, marker = self._arguments_begin.match(text, end)
        if marker is None and is_possible:
            return self._keep_pending(text, end)
        if marker is None:
            self._state = self._read_section
            return end
        self._claim()
        self._has_calls = True
        self._events.append(ToolCallBegin(self._num_calls, self._name))
        if marker == "{":
            self._scanner, self._state = JsonScanner(), self._read_arguments
        else:
            # A model that leaves out even the braces of a call without arguments.
            self._give_arguments("{}")
            self._end_arguments()
        return end

    def _read_arguments(self, text: str, position: int) -> int:
        end = self._scanner.read(text, position)
        self._give_arguments(text[position:end])
        if self._scanner.status == "whole":
            self._end_arguments()
        elif self._scanner.status == "broken":
            self._state = self._read_broken_arguments
        return end

    def _end_arguments(self) -> None:
        self._events.append(ToolCallEnd(self._num_calls))
        self._num_calls += 1
        self._state = self._read_section

    def _read_broken_arguments(self, text: str, position: int) -> int:
        found, marker = self._call_end.search(text, position)
        self._give_arguments(text[position:found])
        if marker is None:
            return self._keep_pending(text, found)
        self._num_calls += 1
        self._state = self._read_section
        return found + len(marker)

    def _give_arguments(self, text: str) -> None:
        if text:
            self._events.append(ToolCallArguments(self._num_calls, text))
