"""JSON calls between <tool_call> and </tool_call>, as Hermes, Qwen 2.5 and Qwen 3 write them. Frontend process."""

from engined.frontend.parsing.format import CallSyntax, ToolFormat
from engined.frontend.parsing.marked_json_calls import MarkedJsonCallsParser
from engined.frontend.parsing.parser import OutputParser, ParserContext
from engined.frontend.parsing.text_pieces import WHITESPACE

_BEGIN = "<tool_call>"
_END = "</tool_call>"


def _new_parser(context: ParserContext) -> OutputParser:
    return MarkedJsonCallsParser(begins=(_BEGIN,), ends=(_END,), swallowed_before=WHITESPACE)


def _is_written_in(template: str) -> bool:
    return _BEGIN in template and "<function=" not in template and "<arg_key>" not in template


HERMES = ToolFormat(
    name="hermes",
    new_parser=_new_parser,
    markers=(_BEGIN, _END),
    is_written_in=_is_written_in,
    syntax=CallSyntax(
        before_name=f'{_BEGIN}\n{{"name": "',
        before_arguments='", "arguments": ',
        after_arguments=f"}}\n{_END}",
        between_calls="\n",
        trigger=_BEGIN,
    ),
)
