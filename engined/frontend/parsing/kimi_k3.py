"""How Kimi K3 writes all of its answer: elements of XTML, one for the reasoning, one for the content, and one for the
calls. Frontend process.

    <|open|>think<|sep|>...<|close|>think<|sep|>
    <|open|>response<|sep|>...<|close|>response<|sep|>
    <|open|>tools<|sep|>
        <|open|>call tool="get_weather" index="1"<|sep|>
            <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
        <|close|>call<|sep|>
    <|close|>tools<|sep|>
    <|close|>message<|sep|>

There are no line breaks between them. The prompt ends within the first element or the second.
"""

from collections.abc import Mapping

from engined.frontend.parsing.elements import ElementCalls, ElementTags
from engined.frontend.parsing.events import ReasoningText
from engined.frontend.parsing.format import ReasoningFormat, ToolFormat
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.state_parser import State, StateParser
from engined.frontend.parsing.text_pieces import MarkerSearch, skip_whitespace

_OPEN, _CLOSE, _SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
_THINK_BEGIN = f"{_OPEN}think{_SEPARATOR}"
_THINK_END = f"{_CLOSE}think{_SEPARATOR}"
_RESPONSE_BEGIN = f"{_OPEN}response{_SEPARATOR}"
_RESPONSE_END = f"{_CLOSE}response{_SEPARATOR}"
_TOOLS_BEGIN = f"{_OPEN}tools{_SEPARATOR}"
_MESSAGE_END = f"{_CLOSE}message{_SEPARATOR}"

_ELEMENTS = MarkerSearch(_THINK_BEGIN, _RESPONSE_BEGIN, _TOOLS_BEGIN, _MESSAGE_END)
_ELEMENTS_WITHOUT_TOOLS = MarkerSearch(_THINK_BEGIN, _RESPONSE_BEGIN, _MESSAGE_END)
_END_OF_THINK = MarkerSearch(_THINK_END)
_ENDS_OF_RESPONSE = MarkerSearch(_RESPONSE_END + _OPEN, _RESPONSE_END + _CLOSE)


def _unescape(attribute: str) -> str:
    return attribute.replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _is_string(attributes: Mapping[str, str]) -> bool:
    return attributes.get("type", "string") == "string"


_TAGS = ElementTags(
    call_begin=f"{_OPEN}call ",
    call_end=f"{_CLOSE}call{_SEPARATOR}",
    value_begin=f"{_OPEN}argument ",
    value_end=f"{_CLOSE}argument{_SEPARATOR}",
    section_end=f"{_CLOSE}tools{_SEPARATOR}",
    tag_end=f'"{_SEPARATOR}',
    empty_tag_end=f'"/{_SEPARATOR}',
    name_attribute="tool",
    key_attribute="key",
    is_string=_is_string,
    unescape=_unescape,
)


class XtmlParser(StateParser):
    """Text between the elements, and calls that break before their first value, are content."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(self._read_start)
        self._elements = _ELEMENTS if context.tools else _ELEMENTS_WITHOUT_TOOLS
        self._first_state: State = self._read_think if context.is_reasoning_open else self._read_response
        self._calls = ElementCalls(_TAGS)

    def _read_start(self, text: str, position: int) -> int:
        """Where the prompt has begun an element, the model may still begin another."""
        is_possible, marker = self._elements.match(text, position)
        if marker is not None:
            return self._begin_element(marker, position)
        if is_possible:
            return self._keep_pending(text, position)
        self._state = self._first_state
        return position

    def _read_between(self, text: str, position: int) -> int:
        position = skip_whitespace(text, position)
        if position == len(text):
            return position
        is_possible, marker = self._elements.match(text, position)
        if marker is not None:
            return self._begin_element(marker, position)
        if is_possible:
            return self._keep_pending(text, position)
        self._state = self._read_response
        return position

    def _begin_element(self, marker: str, position: int) -> int:
        if marker == _THINK_BEGIN:
            self._state = self._read_think
        elif marker == _RESPONSE_BEGIN:
            self._state = self._read_response
        elif marker == _TOOLS_BEGIN:
            self._calls.begin_section()
            self._state = self._read_calls
        else:
            self._state = self._read_between
        return position + len(marker)

    def _read_think(self, text: str, position: int) -> int:
        found, marker = _END_OF_THINK.search(text, position)
        if found > position:
            self._events.append(ReasoningText(text[position:found]))
        if marker is None:
            return self._keep_pending(text, found)
        self._state = self._read_between
        return found + len(marker)

    def _read_response(self, text: str, position: int) -> int:
        found, marker = _ENDS_OF_RESPONSE.search(text, position)
        self._give_content(text[position:found])
        if marker is None:
            return self._keep_pending(text, found)
        self._state = self._read_between
        return found + len(_RESPONSE_END)

    def _read_calls(self, text: str, position: int) -> int:
        end = self._calls.read(text, position)
        self._events += self._calls.take_events()
        if self._calls.status == "whole":
            self._state = self._read_between
        elif self._calls.status == "broken":
            self._give_content(self._calls.take_unclaimed())
            self._state = self._read_response
        elif end < len(text):
            return self._keep_pending(text, end)
        return end

    def _end_of_text(self) -> None:
        is_cut_tag = _OPEN in self._pending or _CLOSE in self._pending
        if not self._pending or is_cut_tag or self._state == self._read_calls:
            return
        state = self._first_state if self._state == self._read_start else self._state
        if state == self._read_think:
            self._events.append(ReasoningText(self._pending))
        else:
            self._give_content(self._pending)


KIMI_K3 = ToolFormat(
    name="kimi_k3",
    new_parser=XtmlParser,
    markers=(_OPEN, _CLOSE, _SEPARATOR),
    is_written_in=lambda template: _OPEN in template and _SEPARATOR in template,
    parses_reasoning=True,
)
KIMI_K3_REASONING = ReasoningFormat(
    name="kimi_k3",
    begin=_THINK_BEGIN,
    end=_THINK_END,
    separator=_RESPONSE_BEGIN,
    is_written_in=KIMI_K3.is_written_in,
)
