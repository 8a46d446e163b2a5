"""Calls as Llama 4 writes them, like Python: [f(a=1), g(b="x")], with or without <|python_start|>. Frontend process."""

import re

from engined.frontend.parsing.events import ToolCallArguments, ToolCallBegin, ToolCallEnd
from engined.frontend.parsing.format import ToolFormat
from engined.frontend.parsing.json_calls import JSON, PlacedJsonCallsParser
from engined.frontend.parsing.literals import PYTHON, LiteralTranscoder
from engined.frontend.parsing.lookahead import NAME, REST, SPACE, Lookahead, Outcome, Part, match_first
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.state_parser import State

_BEGIN, _END = "<|python_start|>", "<|python_end|>"
_CALL = (NAME, SPACE, "(", SPACE, REST)
_FIRST_ARGUMENT = (Part(r"[^\W\d]\w{0,255}"), SPACE, "=")
_FIRST_CALL = tuple(Lookahead(SPACE, "[", SPACE, *_CALL, *first) for first in (_FIRST_ARGUMENT, (")",)))
_NEXT_CALL = tuple(Lookahead(SPACE, ",", SPACE, *_CALL, *first) for first in (_FIRST_ARGUMENT, (")",)))
_LIST_END = (Lookahead(SPACE, "]"), Lookahead(SPACE, ",", SPACE, "]"))


class PythonicParser(PlacedJsonCallsParser):
    """A list of calls of known tools, at the beginning of the content or behind the marker. Lists in JSON are read as
    well.
    """

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context, begins=(_BEGIN,), ends=(_END,))
        self._transcoder = LiteralTranscoder(PYTHON)

    def _begin_call(self) -> State:
        super()._begin_call()
        return self._read_first_call

    def _begin_bare_call(self) -> State:
        super()._begin_bare_call()
        return self._read_first_call

    def _read_first_call(self, text: str, position: int) -> int:
        found = match_first(_FIRST_CALL, text, position)
        if found is Outcome.MAYBE:
            return self._keep_pending(text, position)
        if isinstance(found, re.Match) and found["name"] in self._tools:
            return self._begin_arguments(found)
        self._state = super()._begin_call() if self._is_marked else super()._begin_bare_call()
        return position

    def _begin_arguments(self, found: re.Match[str]) -> int:
        self._claim()
        self._events.append(ToolCallBegin(self._num_calls, found["name"]))
        self._num_calls += 1
        self._transcoder = LiteralTranscoder(PYTHON)
        self._transcoder.open_arguments()
        self._state = self._read_arguments
        return found.start("rest")

    def _read_arguments(self, text: str, position: int) -> int:
        position = self._transcoder.feed(text, position)
        arguments = self._transcoder.take()
        if arguments:
            self._events.append(ToolCallArguments(self._num_calls - 1, arguments))
        if self._transcoder.is_done:
            self._events.append(ToolCallEnd(self._num_calls - 1))
            self._state = self._read_separator
        elif self._transcoder.is_broken:
            self._give_up_call()
        else:
            return self._keep_pending(text, position)
        return position

    def _read_separator(self, text: str, position: int) -> int:
        found = match_first((*_NEXT_CALL, *_LIST_END), text, position)
        if found is Outcome.MAYBE:
            return self._keep_pending(text, position)
        if isinstance(found, re.Match) and "name" not in found.re.groupindex:
            self._end_call()
            return found.end()
        if isinstance(found, re.Match) and found["name"] in self._tools:
            return self._begin_arguments(found)
        self._give_up_call()
        return position

    def _end_of_text(self) -> None:
        if self._state == self._read_first_call and not self._is_marked:
            self._give_content("".join(self._unclaimed) + self._pending)
        super()._end_of_text()


LLAMA4_PYTHONIC = ToolFormat(
    name="llama4_pythonic",
    new_parser=PythonicParser,
    markers=(_BEGIN, _END),
    is_written_in=lambda template: "[func_name1(" in template,
    syntax=JSON.syntax,
)
