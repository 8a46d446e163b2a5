"""How DeepSeek V3.2, V4 and V4.1 write calls: elements of DSML. Frontend process.

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>

The versions differ in the name of the outer element; V4.1 has a space behind the token, too.
"""

from engined.frontend.parsing.elements import ElementCalls, ElementTags
from engined.frontend.parsing.format import ToolFormat
from engined.frontend.parsing.marked_calls import MarkedCallsParser
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.state_parser import State

_TOKEN = "｜DSML｜"


class DsmlParser(MarkedCallsParser):
    """Reads calls between the tags of one version. Of the content before, only the empty line that the model was
    trained to write in front of calls is dropped."""

    def __init__(self, section: str, prefix: str = _TOKEN) -> None:
        begin = f"<{prefix}{section}>"
        super().__init__(begins=(f"\n\n{begin}", begin))
        self._calls = ElementCalls(_tags(section, prefix))

    def _begin_call(self) -> State:
        self._calls.begin_section()
        return self._read_calls

    def _read_calls(self, text: str, position: int) -> int:
        end = self._calls.read(text, position)
        events = self._calls.take_events()
        if events:
            self._claim()
            self._events += events
        if self._calls.status == "whole":
            self._end_call()
        elif self._calls.status == "broken":
            self._unclaimed.append(self._calls.take_unclaimed())
            self._give_up_call()
        elif end < len(text):
            return self._keep_pending(text, end)
        return end

    def _end_of_text(self) -> None:
        if _TOKEN not in self._pending:
            super()._end_of_text()


def _tags(section: str, prefix: str) -> ElementTags:
    return ElementTags(
        call_begin=f"<{prefix}invoke ",
        call_end=f"</{prefix}invoke>",
        value_begin=f"<{prefix}parameter ",
        value_end=f"</{prefix}parameter>",
        section_end=f"</{prefix}{section}>",
        tag_end='">',
        empty_tag_end='"/>',
        name_attribute="name",
        key_attribute="name",
        is_string=lambda attributes: attributes.get("string") != "false",
    )


def _new_v32_parser(context: ParserContext) -> DsmlParser:
    return DsmlParser("function_calls")


def _new_v4_parser(context: ParserContext) -> DsmlParser:
    return DsmlParser("tool_calls")


def _new_v41_parser(context: ParserContext) -> DsmlParser:
    return DsmlParser("calls", f"{_TOKEN} ")


def _is_v32(template: str) -> bool:
    return _TOKEN in template and "function_calls" in template


def _is_v41(template: str) -> bool:
    return _TOKEN in template and " calls>" in template


def _begin_of_calls(section: str, prefix: str = _TOKEN) -> str:
    return f'<{prefix}{section}>\n<{prefix}invoke name="'


DEEPSEEK_V32 = ToolFormat(
    name="deepseek_v32",
    new_parser=_new_v32_parser,
    markers=(_TOKEN,),
    is_written_in=_is_v32,
    ends_reasoning=_begin_of_calls("function_calls"),
)
DEEPSEEK_V4 = ToolFormat(
    name="deepseek_v4",
    new_parser=_new_v4_parser,
    markers=(_TOKEN,),
    is_written_in=lambda template: _TOKEN in template and not _is_v32(template) and not _is_v41(template),
    ends_reasoning=_begin_of_calls("tool_calls"),
)
DEEPSEEK_V41 = ToolFormat(
    name="deepseek_v41",
    new_parser=_new_v41_parser,
    markers=(_TOKEN,),
    is_written_in=_is_v41,
    ends_reasoning=_begin_of_calls("calls", f"{_TOKEN} "),
)
