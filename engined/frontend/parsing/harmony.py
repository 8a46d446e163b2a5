"""How gpt-oss writes all of its answer: messages of the harmony format. Frontend process.

    <|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{"city": "Paris"}<|call|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>

The prompt ends with the first `<|start|>assistant`; the last end is a stop token, and not in the text. The recipient
may also stand before the channel. Analysis is reasoning; the rest is content, unless it goes to a tool.
"""

import re
from collections.abc import Callable

from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engined.frontend.parsing.format import CallSyntax, ReasoningFormat, ToolFormat
from engined.frontend.parsing.json_scanner import JsonScanner
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.state_parser import StateParser
from engined.frontend.parsing.text_pieces import MarkerSearch, skip_whitespace

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_FUNCTIONS = "functions."
_MAX_HEADER_LENGTH = 600

_HEADER_BEGIN = MarkerSearch(_CHANNEL, "to=", _MESSAGE, _START, _CONSTRAIN)
_HEADER_END = MarkerSearch(_MESSAGE, _START, *_ENDS)
_NEXT_MESSAGE = MarkerSearch(_START)
# The text of a message may well speak of these tokens: it ends where a header follows.
_BODY_END = MarkerSearch(*(end + _START for end in _ENDS), f"{_START}assistant{_CHANNEL}", f"{_START}assistant to=")
_TOKEN = re.compile(r"<\|[a-z]+\|>")

_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*([a-z]{1,32})")
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
_PEOPLE = frozenset({"assistant", "user", "all"})
_HEADER_PART = re.compile(
    r"^\s*assistant\b|(?:^|\s)to=[^\s<]*|<\|channel\|>\s*[a-z]{0,32}|\s*<\|constrain\|>\w*|<\|[a-z]+\|>"
)
_CUT_HEADER_END = re.compile(r"\s*\w*\Z")

Wrap = Callable[[str], OutputEvent]


class HarmonyParser(StateParser):
    """Messages to what is neither a function nor a person, such as the tools built into gpt-oss, are dropped, unless a
    tool of that name was offered: nobody could run them.

    Arguments that turn out to be no JSON go on as they are up to the end of their message, and the call is not whole.
    """

    def __init__(self, context: ParserContext) -> None:
        super().__init__(self._read_start)
        self._tools = context.tools
        self._wrap: Wrap | None = ReasoningText if context.is_reasoning_open else ContentText
        self._function = ""
        self._num_calls = 0
        self._scanner = JsonScanner()

    def _read_start(self, text: str, position: int) -> int:
        """A header, or the text of a message that the prompt has begun."""
        begin = skip_whitespace(text, position)
        if begin - position > _MAX_HEADER_LENGTH:
            self._state = self._read_body
            return position
        is_possible, marker = _HEADER_BEGIN.match(text, begin)
        if begin == len(text) or (is_possible and marker is None):
            return self._keep_pending(text, position)
        self._state = self._read_header if marker is not None else self._read_body
        return position

    def _read_header(self, text: str, position: int) -> int:
        found, marker = _HEADER_END.search(text, position)
        is_too_long = found - position > _MAX_HEADER_LENGTH
        if marker is None and not is_too_long:
            return self._keep_pending(text, position)
        header = text[position : min(found, position + _MAX_HEADER_LENGTH)]
        self._begin_message(header)
        if marker == _MESSAGE and not is_too_long:
            return found + len(_MESSAGE)
        # It is no header, but what it has of a text should not be lost.
        self._give(_HEADER_PART.sub("", header).lstrip())
        self._state = self._read_body if is_too_long else self._read_between
        return position + len(header)

    def _begin_message(self, header: str) -> None:
        channels, recipients = _CHANNEL_NAME.findall(header), _RECIPIENT.findall(header)
        recipient = recipients[-1] if recipients else "all"
        function = recipient.removeprefix(_FUNCTIONS)
        self._state = self._read_body
        if self._tools and function and (recipient != function or function in self._tools):
            self._function, self._state, self._wrap = function, self._read_arguments_begin, ContentText
        elif recipient == function and recipient not in _PEOPLE:
            self._wrap = None
        else:
            self._wrap = ReasoningText if channels[-1:] == ["analysis"] else ContentText

    def _read_body(self, text: str, position: int) -> int:
        found, marker = _BODY_END.search(text, position)
        self._give(text[position:found])
        if marker is None:
            return self._keep_pending(text, found)
        self._state = self._read_between
        return found

    def _read_arguments_begin(self, text: str, position: int) -> int:
        position = skip_whitespace(text, position)
        if position == len(text):
            return position
        if text[position] == "{":
            self._events.append(ToolCallBegin(self._num_calls, self._function))
            self._num_calls += 1
            self._scanner, self._state = JsonScanner(), self._read_arguments
        else:
            self._state = self._read_body
        return position

    def _read_arguments(self, text: str, position: int) -> int:
        end = self._scanner.read(text, position)
        self._wrap = self._arguments
        self._give(text[position:end])
        if self._scanner.status == "whole":
            self._events.append(ToolCallEnd(self._num_calls - 1))
            self._state = self._read_between
        elif self._scanner.status == "broken":
            self._state = self._read_body
        return end

    def _arguments(self, text: str) -> OutputEvent:
        return ToolCallArguments(self._num_calls - 1, text)

    def _read_between(self, text: str, position: int) -> int:
        found, marker = _NEXT_MESSAGE.search(text, position)
        if marker is None:
            return self._keep_pending(text, found)
        self._state = self._read_header
        return found + len(marker)

    def _give(self, text: str) -> None:
        if text and self._wrap is not None:
            self._events.append(self._wrap(text))

    def _end_of_text(self) -> None:
        if self._state == self._read_header:
            self._begin_message(self._pending)
            self._give(_HEADER_PART.sub("", _CUT_HEADER_END.sub("", self._pending)).lstrip())
        elif self._state in (self._read_start, self._read_body) and not _TOKEN.search(self._pending):
            self._give(self._pending)


def _is_written_in(template: str) -> bool:
    return _CHANNEL in template and _MESSAGE in template


OPENAI = ToolFormat(
    name="openai",
    new_parser=HarmonyParser,
    markers=(_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS),
    is_written_in=_is_written_in,
    syntax=CallSyntax(
        before_name=f"{_CHANNEL}commentary to={_FUNCTIONS}",
        before_arguments=f" {_CONSTRAIN}json{_MESSAGE}",
        trigger=f"{_CHANNEL}commentary to=",
        is_single=True,
    ),
    parses_reasoning=True,
)
OPENAI_REASONING = ReasoningFormat(
    name="openai_gptoss",
    begin=f"{_CHANNEL}analysis{_MESSAGE}",
    end=_ENDS[0],
    separator=f"{_START}assistant",
    content_prefix=f"{_CHANNEL}final{_MESSAGE}",
    is_always_begun=True,
    is_written_in=_is_written_in,
)
