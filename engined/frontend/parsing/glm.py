"""Calls as GLM writes them: a name, then <arg_key> and <arg_value> for each parameter. Frontend process.

GLM 4.5 and 4.6 write each on a line of its own, 4.7 and 5 without a line feed. One parser reads both.
"""

from engined.frontend.parsing.format import CallSyntax, TaggedArguments, ToolFormat
from engined.frontend.parsing.lookahead import NAME, REST, SPACE, Lookahead, Part
from engined.frontend.parsing.parser import OutputParser, ParserContext
from engined.frontend.parsing.tagged_calls import TaggedCallsParser, TagSyntax

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_PARAMETER = (_KEY, Part(r"(?P<key>[^<>\n]{1,256})"), _KEY_END, SPACE, _VALUE)

_SYNTAX = TagSyntax(
    headers={_CALL: tuple(Lookahead(SPACE, NAME, SPACE, REST, *first) for first in (_PARAMETER, (_CALL_END,)))},
    parameter=Lookahead(*_PARAMETER),
    value_end=_VALUE_END,
    value_ends=(
        Lookahead(_VALUE_END, SPACE, REST, *_PARAMETER),
        Lookahead(_VALUE_END, SPACE, REST, _CALL_END),
    ),
    unclosed_ends=(Lookahead(REST, _CALL_END, SPACE, _CALL),),
    call_ends=(_CALL_END,),
    has_lines=False,
)


def _new_parser(context: ParserContext) -> OutputParser:
    return TaggedCallsParser(_SYNTAX, context)


def _glm(name: str, line_feed: str) -> ToolFormat:
    return ToolFormat(
        name=name,
        new_parser=_new_parser,
        markers=(_CALL, _CALL_END, _KEY, _KEY_END, _VALUE, _VALUE_END),
        is_written_in=lambda template: _KEY in template and (f"{_KEY_END}\n{_VALUE}" in template) == bool(line_feed),
        syntax=CallSyntax(
            before_name=_CALL,
            before_arguments=line_feed,
            after_arguments=_CALL_END,
            between_calls=line_feed,
            trigger=_CALL,
            tagged=TaggedArguments(
                before_key=_KEY, after_key=f"{_KEY_END}{line_feed}{_VALUE}", after_value=f"{_VALUE_END}{line_feed}"
            ),
        ),
        syntax_if_tagged_fails=CallSyntax(
            before_name=f'{_CALL}{{"name": "',
            before_arguments='", "arguments": ',
            after_arguments=f"}}{_CALL_END}",
            between_calls=line_feed,
            trigger=_CALL,
        ),
    )


GLM45 = _glm("glm45", "\n")
GLM47 = _glm("glm47", "")
