"""Calls as Qwen 3 Coder, and Qwen from 3.5 on, write them: <function=NAME>, <parameter=KEY> and a line for each value.

Frontend process.
"""

from engined.frontend.parsing.format import CallSyntax, TaggedArguments, ToolFormat
from engined.frontend.parsing.hermes import HERMES
from engined.frontend.parsing.lookahead import NAME, REST, SPACE, Lookahead, Part
from engined.frontend.parsing.parser import OutputParser, ParserContext
from engined.frontend.parsing.tagged_calls import TaggedCallsParser, TagSyntax

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_VALUE_END = "</parameter>"
_PARAMETER = ("<parameter=", Part(r"(?P<key>[^<>\n]{1,256})"), ">")
_FIRSTS = (_PARAMETER, (_FUNCTION_END,), (_CALL_END,))

_SYNTAX = TagSyntax(
    headers={
        _CALL: tuple(Lookahead(SPACE, _FUNCTION, NAME, ">", SPACE, REST, *first) for first in _FIRSTS),
        _FUNCTION: tuple(Lookahead(NAME, ">", SPACE, REST, *first) for first in _FIRSTS),
    },
    parameter=Lookahead(*_PARAMETER),
    value_end=_VALUE_END,
    value_ends=(
        Lookahead(_VALUE_END, SPACE, REST, *_PARAMETER),
        Lookahead(_VALUE_END, SPACE, REST, _FUNCTION_END, SPACE, _CALL_END),
        Lookahead(_VALUE_END, SPACE, REST, _FUNCTION_END, SPACE, _CALL),
        Lookahead(_VALUE_END, SPACE, REST, _FUNCTION_END, SPACE, _FUNCTION),
        Lookahead(_VALUE_END, SPACE, REST, _CALL_END),
    ),
    unclosed_ends=(
        Lookahead(REST, *_PARAMETER),
        Lookahead(REST, _FUNCTION_END, SPACE, _CALL_END),
        Lookahead(REST, _CALL_END, SPACE, _CALL),
    ),
    call_ends=(_FUNCTION_END, _CALL_END),
    has_lines=True,
    unmarked=_FUNCTION,
)


def _new_parser(context: ParserContext) -> OutputParser:
    return TaggedCallsParser(_SYNTAX, context)


QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    new_parser=_new_parser,
    markers=(_CALL, _CALL_END, _FUNCTION, _FUNCTION_END, _PARAMETER[0], _VALUE_END),
    is_written_in=lambda template: _FUNCTION in template and _PARAMETER[0] in template,
    ends_reasoning=f"{_CALL}\n{_FUNCTION}",
    syntax=CallSyntax(
        before_name=f"{_CALL}\n{_FUNCTION}",
        before_arguments=">\n",
        after_arguments=f"{_FUNCTION_END}\n{_CALL_END}",
        between_calls="\n",
        trigger=_CALL,
        tagged=TaggedArguments(before_key=_PARAMETER[0], after_key=">\n", after_value=f"\n{_VALUE_END}\n"),
    ),
    syntax_if_tagged_fails=HERMES.syntax,
)
