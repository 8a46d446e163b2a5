"""Calls and reasoning as Gemma 4 writes them: <|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>, and
<|channel>thought. Frontend process.
"""

import re

from engined.frontend.parsing.events import ToolCallArguments, ToolCallBegin, ToolCallEnd
from engined.frontend.parsing.format import CallSyntax, ReasoningFormat, ToolFormat
from engined.frontend.parsing.literals import LiteralDialect, LiteralTranscoder
from engined.frontend.parsing.lookahead import NAME, REST, SPACE, Lookahead, Outcome
from engined.frontend.parsing.marked_calls import MarkedCallsParser
from engined.frontend.parsing.parser import OutputParser, ParserContext
from engined.frontend.parsing.state_parser import State

_CALL, _CALL_END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_HEADER = Lookahead(SPACE, "call:", SPACE, NAME, SPACE, REST, "{")
_DIALECT = LiteralDialect(quotes={_QUOTE: False, '"': True})


class Gemma4Parser(MarkedCallsParser):
    """Between the marker and the name stands `call:`; keys are bare. Arguments in plain JSON are read as well."""

    def __init__(self) -> None:
        super().__init__(begins=(_CALL,), ends=(_CALL_END,))
        self._transcoder = LiteralTranscoder(_DIALECT)

    def _begin_call(self) -> State:
        return self._read_header

    def _read_header(self, text: str, position: int) -> int:
        found = _HEADER.match(text, position)
        if found is Outcome.MAYBE:
            return self._keep_pending(text, position)
        if not isinstance(found, re.Match):
            self._give_up_call()
            return position
        self._claim()
        self._events.append(ToolCallBegin(self._num_calls, found["name"]))
        self._num_calls += 1
        self._transcoder = LiteralTranscoder(_DIALECT)
        self._state = self._read_arguments
        return found.start("rest")

    def _read_arguments(self, text: str, position: int) -> int:
        position = self._transcoder.feed(text, position)
        arguments = self._transcoder.take()
        if arguments:
            self._events.append(ToolCallArguments(self._num_calls - 1, arguments))
        if self._transcoder.is_done:
            self._events.append(ToolCallEnd(self._num_calls - 1))
            self._end_call()
        elif self._transcoder.is_broken:
            self._give_up_call()
        else:
            return self._keep_pending(text, position)
        return position


def _new_parser(context: ParserContext) -> OutputParser:
    return Gemma4Parser()


GEMMA4 = ToolFormat(
    name="gemma4",
    new_parser=_new_parser,
    markers=(_CALL, _CALL_END, _QUOTE),
    is_written_in=lambda template: _CALL in template,
    ends_reasoning=f"{_CALL}call:",
    syntax=CallSyntax(before_name=f"{_CALL}call:", before_arguments="", after_arguments=_CALL_END, trigger=_CALL),
)
GEMMA4_REASONING = ReasoningFormat(
    name="gemma4",
    begin="<|channel>thought\n",
    end="<channel|>",
    is_written_in=lambda template: "<|channel>thought" in template,
)
