"""How DeepSeek V3 and R1, and V3.1, write calls. Frontend process. (V3.2 and later: dsml.py.)"""

from engined.frontend.parsing.format import CallSyntax, ToolFormat
from engined.frontend.parsing.parser import OutputParser, ParserContext
from engined.frontend.parsing.section_calls import SectionCallsParser, SectionTags

_SECTION_BEGIN = "<｜tool▁calls▁begin｜>"
_SECTION_END = "<｜tool▁calls▁end｜>"
_CALL_BEGIN = "<｜tool▁call▁begin｜>"
_CALL_END = "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_FENCE_BEGIN = "\n```json\n"
_FENCE_END = "\n```"
_MARKERS = (_SECTION_BEGIN, _SECTION_END, _CALL_BEGIN, _CALL_END, _SEPARATOR)

_V3_TAGS = SectionTags(
    section_begin=_SECTION_BEGIN,
    call_begin=f"{_CALL_BEGIN}function{_SEPARATOR}",
    name_end=_FENCE_BEGIN,
    call_ends=(f"{_FENCE_END}{_CALL_END}", f"```{_CALL_END}", _CALL_END),
    section_end=_SECTION_END,
)
_V31_TAGS = SectionTags(
    section_begin=_SECTION_BEGIN,
    call_begin=_CALL_BEGIN,
    name_end=_SEPARATOR,
    call_ends=(_CALL_END,),
    section_end=_SECTION_END,
)


def _new_v3_parser(context: ParserContext) -> OutputParser:
    return SectionCallsParser(_V3_TAGS)


def _new_v31_parser(context: ParserContext) -> OutputParser:
    return SectionCallsParser(_V31_TAGS)


def _syntax(tags: SectionTags, *, between_calls: str) -> CallSyntax:
    return CallSyntax(
        before_calls=tags.section_begin,
        before_name=tags.call_begin,
        before_arguments=tags.name_end,
        after_arguments=tags.call_ends[0],
        between_calls=between_calls,
        after_calls=tags.section_end,
        trigger=tags.section_begin,
    )


DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    new_parser=_new_v3_parser,
    markers=_MARKERS,
    is_written_in=lambda template: _SEPARATOR in template and "```json" in template,
    syntax=_syntax(_V3_TAGS, between_calls="\n"),
    ends_reasoning=f"{_SECTION_BEGIN}{_CALL_BEGIN}",
)
DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    new_parser=_new_v31_parser,
    markers=_MARKERS,
    is_written_in=lambda template: _SEPARATOR in template and "```json" not in template,
    syntax=_syntax(_V31_TAGS, between_calls=""),
    ends_reasoning=f"{_SECTION_BEGIN}{_CALL_BEGIN}",
)
