"""What the tests of parsers share."""

from collections.abc import Iterable

from engined.frontend.parsing.events import ContentText, OutputEvent, ReasoningText, ToolCallArguments
from engined.frontend.parsing.format import OutputFormat
from engined.frontend.parsing.formats import new_parser
from engined.frontend.parsing.parser import ParserContext


def parse(output_format: OutputFormat, context: ParserContext, pieces: Iterable[str]) -> list[OutputEvent]:
    """What a new parser finds in these pieces, neighbours joined."""
    parser = new_parser(output_format, context)
    return joined([event for piece in pieces for event in parser.feed(piece)] + parser.finish())


def joined(events: list[OutputEvent]) -> list[OutputEvent]:
    """Neighbours of one kind as one event, which is what does not depend on how the text was cut."""
    result: list[OutputEvent] = []
    for event in events:
        match result[-1] if result else None, event:
            case ContentText(before), ContentText(text):
                result[-1] = ContentText(before + text)
            case ReasoningText(before), ReasoningText(text):
                result[-1] = ReasoningText(before + text)
            case ToolCallArguments(index, before), ToolCallArguments(same, text) if index == same:
                result[-1] = ToolCallArguments(index, before + text)
            case _:
                result.append(event)
    return result
