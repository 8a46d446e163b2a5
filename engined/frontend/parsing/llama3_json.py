"""Calls as bare JSON, or behind <|python_tag|>, as Llama 3.1 to 3.3 write them. Frontend process."""

from engined.frontend.parsing.format import CallSyntax, ToolFormat
from engined.frontend.parsing.json_calls import PlacedJsonCallsParser
from engined.frontend.parsing.parser import OutputParser, ParserContext

_BEGIN = "<|python_tag|>"


def _new_parser(context: ParserContext) -> OutputParser:
    return PlacedJsonCallsParser(context, begins=(_BEGIN,))


def _is_written_in(template: str) -> bool:
    return "<|start_header_id|>" in template and '"parameters"' in template


LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    new_parser=_new_parser,
    markers=(_BEGIN,),
    is_written_in=_is_written_in,
    syntax=CallSyntax(
        before_name='{"name": "',
        before_arguments='", "parameters": ',
        after_arguments="}",
        is_single=True,
    ),
)
