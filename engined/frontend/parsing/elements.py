"""Calls and their arguments as elements with attributes, like those of XML. Frontend process; used by the parsers of
DeepSeek's DSML and Kimi's XTML.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from engined.frontend.parsing.events import OutputEvent, ToolCallArguments, ToolCallBegin, ToolCallEnd
from engined.frontend.parsing.json_scanner import JsonScanner
from engined.frontend.parsing.json_writer import JsonObjectWriter, escaped
from engined.frontend.parsing.lookahead import REST, SPACE, Lookahead, Outcome, match_first
from engined.frontend.parsing.text_pieces import MarkerSearch, skip_whitespace

_MAX_TAG_LENGTH = 600
_MAX_SCALAR_LENGTH = 1000
_ATTRIBUTE = re.compile(r'(\w+)="(.*?)"(?=\s+\w+="|\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementTags:
    """call_begin ATTRIBUTES tag_end (value_begin ATTRIBUTES tag_end VALUE value_end)... call_end ... section_end"""

    call_begin: str
    call_end: str
    value_begin: str
    value_end: str
    section_end: str
    tag_end: str
    """Beginning with the quote that ends the last attribute."""
    empty_tag_end: str
    """That of a call without any value and without call_end."""
    name_attribute: str
    key_attribute: str
    is_string: Callable[[Mapping[str, str]], bool]
    """Of the attributes of a value: whether it is a string, which stands there as it is. All else is JSON."""
    unescape: Callable[[str], str] = str
    """For the values of attributes."""


Phase = Callable[[str, int], int | None]
"""Reads text from a position, and gives the position where to go on; None if it needs more text."""


class ElementCalls:
    """Reads the calls of one section after the other. The beginning of a section is for the parser that has it.

    A call begins with its first value, or with its end if it has none. Where the text breaks off, what may have become
    a tag is left out, so that arguments are cut off, but never wrong.
    """

    def __init__(self, tags: ElementTags) -> None:
        self.status: Literal["open", "whole", "broken"] = "open"
        self._tags = tags
        self._phase: Phase = self._read_section
        self._call_or_end = MarkerSearch(tags.call_begin, tags.section_end)
        self._tag_ends = MarkerSearch(tags.tag_end, tags.empty_tag_end)
        self._value_or_end = MarkerSearch(tags.value_begin, tags.call_end)
        self._value_end = MarkerSearch(tags.value_end)
        # In a string the same text may stand: it ends only where the next tag follows.
        self._string_ends = tuple(
            Lookahead(tags.value_end, REST, SPACE, following) for following in (tags.value_begin, tags.call_end)
        )
        self._events: list[OutputEvent] = []
        self._unclaimed: list[str] = []
        self._num_calls = 0
        self._name = ""
        self._is_begun = False
        self._writer = JsonObjectWriter()
        self._waiting = ""
        self._scanner = JsonScanner()

    def begin_section(self) -> None:
        """What is read next stands behind the beginning of a section."""
        self.status, self._phase = "open", self._read_section
        self._is_begun, self._unclaimed = False, []

    def read(self, text: str, position: int) -> int:
        """The position behind what was understood. With status "open" the rest is to be read again, with more behind
        it; with status "broken" it belongs to no call."""
        while position < len(text) and self.status == "open":
            after = self._phase(text, position)
            if after is None:
                break
            position = after
        return position

    def take_events(self) -> list[OutputEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def take_unclaimed(self) -> str:
        """What was read of a section, or of a call, that broke before it came to a value."""
        unclaimed, self._unclaimed = self._unclaimed, []
        return "" if self._is_begun else "".join(unclaimed)

    def _read_section(self, text: str, position: int) -> int | None:
        marker, end = self._expect(self._call_or_end, text, position)
        if marker == self._tags.section_end:
            self.status = "whole"
        elif marker is not None:
            self._phase = self._read_call_tag
        return end

    def _read_call_tag(self, text: str, position: int) -> int | None:
        attributes, marker, end = self._read_tag(text, position)
        if marker is None:
            return end
        self._name = attributes.get(self._tags.name_attribute, "")
        self._writer, self._waiting = JsonObjectWriter(), ""
        if not self._name:
            self.status = "broken"
        elif marker == self._tags.tag_end:
            self._phase = self._read_call
        else:
            self._end_call()
        return end

    def _read_call(self, text: str, position: int) -> int | None:
        marker, end = self._expect(self._value_or_end, text, position)
        if marker == self._tags.call_end:
            self._end_call()
        elif marker is not None:
            self._phase = self._read_value_tag
        return end

    def _end_call(self) -> None:
        self._give(self._writer.end())
        self._events.append(ToolCallEnd(self._num_calls - 1))
        self._is_begun, self._unclaimed = False, []
        self._phase = self._read_section

    def _read_value_tag(self, text: str, position: int) -> int | None:
        attributes, marker, end = self._read_tag(text, position)
        if marker is None:
            return end
        key = attributes.get(self._tags.key_attribute)
        if key is None or marker != self._tags.tag_end:
            self.status = "broken"
        elif self._tags.is_string(attributes):
            self._waiting += self._writer.key(key) + '"'
            self._phase = self._read_string
        else:
            self._waiting += self._writer.key(key)
            self._phase = self._read_json_begin
        return end

    def _read_string(self, text: str, position: int) -> int | None:
        found, marker = self._value_end.search(text, position)
        end = match_first(self._string_ends, text, found) if marker is not None else Outcome.MAYBE
        if end is Outcome.NO:
            found += len(self._tags.value_end)
        self._give(escaped(text[position:found]))
        if isinstance(end, re.Match):
            self._give('"')
            self._phase = self._read_call
            return end.start("rest")
        return found if found > position else None

    def _read_json_begin(self, text: str, position: int) -> int | None:
        end = skip_whitespace(text, position)
        if end < len(text):
            self._scanner = JsonScanner()
            self._phase = self._read_json if text[end] in '{["' else self._read_scalar
        return end

    def _read_json(self, text: str, position: int) -> int | None:
        end = self._scanner.read(text, position)
        self._give(text[position:end])
        if self._scanner.status == "broken":
            self.status = "broken"
        elif self._scanner.status == "whole":
            self._phase = self._read_value_end
        return end

    def _read_scalar(self, text: str, position: int) -> int | None:
        """A number or a constant. What is neither is a string whose attribute is wrong."""
        found, marker = self._value_end.search(text, position)
        if found - position > _MAX_SCALAR_LENGTH:
            self.status = "broken"
            return position
        if marker is None:
            return None
        scalar = text[position:found].rstrip()
        is_json = self._scanner.read(f"{scalar} ", 0) == len(scalar) and self._scanner.status == "whole"
        self._give(scalar if is_json else f'"{escaped(text[position:found])}"')
        self._phase = self._read_value_end
        return found

    def _read_value_end(self, text: str, position: int) -> int | None:
        marker, end = self._expect(self._value_end, text, position)
        if marker is not None:
            self._phase = self._read_call
        return end

    def _expect(self, markers: MarkerSearch, text: str, position: int) -> tuple[str | None, int | None]:
        """One of `markers`, behind any whitespace, and where to go on. If something else stands there, it is broken."""
        end = skip_whitespace(text, position)
        if end > position:
            self._unclaimed.append(text[position:end])
            return None, end
        is_possible, marker = markers.match(text, position)
        if marker is not None:
            self._unclaimed.append(marker)
            return marker, position + len(marker)
        if is_possible:
            return None, None
        self.status = "broken"
        return None, position

    def _read_tag(self, text: str, position: int) -> tuple[Mapping[str, str], str | None, int | None]:
        """The attributes up to the end of a tag, this end, and where to go on."""
        found, marker = self._tag_ends.search(text, position)
        if found - position > _MAX_TAG_LENGTH:
            self.status = "broken"
            return {}, None, position
        if marker is None:
            return {}, None, None
        end = found + len(marker)
        self._unclaimed.append(text[position:end])
        attributes = _ATTRIBUTE.findall(f'{text[position:found]}"')
        return {name: self._tags.unescape(value) for name, value in attributes}, marker, end

    def _give(self, text: str) -> None:
        if not text:
            return
        if not self._is_begun:
            self._is_begun = True
            self._events.append(ToolCallBegin(self._num_calls, self._name))
            self._num_calls += 1
        self._events.append(ToolCallArguments(self._num_calls - 1, self._waiting + text))
        self._waiting = ""
