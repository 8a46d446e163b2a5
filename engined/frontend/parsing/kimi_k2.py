"""How Kimi K2 writes calls: the place of the name has the id of the call, `functions.NAME:INDEX`. Frontend process."""

from engined.frontend.parsing.format import CallSyntax, ToolFormat
from engined.frontend.parsing.parser import OutputParser, ParserContext
from engined.frontend.parsing.section_calls import SectionCallsParser, SectionTags


def _name_of(call_id: str) -> str:
    name = call_id.strip().removeprefix("functions.")
    before, _, index = name.rpartition(":")
    return before if index.isdecimal() else name


_TAGS = SectionTags(
    section_begin="<|tool_calls_section_begin|>",
    call_begin="<|tool_call_begin|>",
    name_end="<|tool_call_argument_begin|>",
    call_ends=("<|tool_call_end|>",),
    section_end="<|tool_calls_section_end|>",
    clean_name=_name_of,
)


def _new_parser(context: ParserContext) -> OutputParser:
    return SectionCallsParser(_TAGS)


# The ids are made anew, since only whoever sees the whole conversation can count right. So it does no harm that a
# grammar, which cannot count, always writes the index 0.
KIMI_K2 = ToolFormat(
    name="kimi_k2",
    new_parser=_new_parser,
    markers=(_TAGS.section_begin, _TAGS.section_end, _TAGS.call_begin, _TAGS.name_end, *_TAGS.call_ends),
    is_written_in=lambda template: _TAGS.call_begin in template and _TAGS.section_begin in template,
    syntax=CallSyntax(
        before_calls=_TAGS.section_begin,
        before_name=f"{_TAGS.call_begin}functions.",
        before_arguments=f":0{_TAGS.name_end}",
        after_arguments=_TAGS.call_ends[0],
        after_calls=_TAGS.section_end,
        trigger=_TAGS.section_begin,
    ),
    ends_reasoning=f"{_TAGS.section_begin}{_TAGS.call_begin}",
    call_ids="function_index",
)
