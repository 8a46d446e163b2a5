"""Every format of output against text that no model would write: never an exception, nothing lost, linear time."""

import json
import random
import time

import pytest

from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engined.frontend.parsing.format import OutputFormat, ReasoningFormat, ToolFormat
from engined.frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS, new_parser
from engined.frontend.parsing.hermes import HERMES
from engined.frontend.parsing.parser import ParserContext
from tests.frontend.parsed_events import parse

NUM_TEXTS = 10_000
TOOLS = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "get_time": {"type": "object", "properties": {}},
    "f": {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": ["object", "null"]}}},
}
NOISE = [
    *(
        " ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        "a",
        "Hello, world.",
        "é",
        "🌸",
        "👩\u200d💻",
        "\u2028",
        "\x00",
        "\x1f",
        "\ufffd",
    ),
    *("<", ">", "{", "}", "[", "]", "(", ")", '"', "'", "\\", "/", ":", ",", "=", ";", "|", "`", "```", "```json", "1"),
    *("null", "true", "-0.5e3", "\\u00e9", "\\ud83d", "{}", "[]", '""', '{"a": 1}', '{"a": [1, {"b": "}"}]}', "\\'"),
]
CALL_PIECES = [
    *(
        '{"name": "',
        '"name": "f"',
        '"arguments": ',
        '"parameters": {',
        '{"name": "f", "arguments": {',
        "get_weather",
        "f",
    ),
    *('{"city": "Paris"}', '{"name": "get_time", "arguments": {}}', '[{"name": "f", "arguments": {"a": []}}]', "city"),
    *("functions.f:0", "[get_weather(city='Paris')]", "f(", "a=1", "to=functions.f", "<function=f>", "<parameter=a>"),
]
ALL_TOOL_FORMATS = pytest.mark.parametrize("tools", TOOL_FORMATS.values(), ids=TOOL_FORMATS.keys())


def markers(tools: ToolFormat) -> list[str]:
    """All that a format looks for, with the tags of reasoning."""
    reasoning = [tag for known in REASONING_FORMATS.values() for tag in (known.begin, known.end)]
    return [*tools.markers, *reasoning]


def syntax_pieces(tools: ToolFormat) -> list[str]:
    """What stands around the names and the arguments of calls."""
    syntax = tools.syntax
    if syntax is None:
        return []
    pieces = [syntax.before_calls, syntax.before_name, syntax.before_arguments, syntax.after_arguments]
    if syntax.tagged is not None:
        pieces += [syntax.tagged.before_key, syntax.tagged.after_key, syntax.tagged.after_value]
    return [piece for piece in [*pieces, syntax.between_calls, syntax.after_calls] if piece]


def begun_call(tools: ToolFormat) -> str:
    """The beginning of a call, up into a string of its arguments."""
    syntax = tools.syntax
    if syntax is None:
        return ""
    begin = f"{syntax.before_calls}{syntax.before_name}f{syntax.before_arguments}"
    return begin + ('{"b": "' if syntax.tagged is None else f"{syntax.tagged.before_key}b{syntax.tagged.after_key}")


@pytest.fixture(scope="module")
def random_texts() -> list[str]:
    """Noise, beginnings of markers, markers, and pieces of calls, each text with those of one format."""
    source = random.Random(4)
    texts = []
    for number in range(NUM_TEXTS):
        tools = list(TOOL_FORMATS.values())[number % len(TOOL_FORMATS)]
        tags, call_pieces = markers(tools), [*CALL_PIECES, *syntax_pieces(tools)]
        pieces = [
            *source.choices(NOISE, k=source.randrange(6)),
            *(tag[: source.randrange(len(tag))] for tag in source.choices(tags, k=source.randrange(3))),
            *source.choices(tags, k=source.randrange(4)),
            *source.choices(call_pieces, k=source.randrange(6)),
        ]
        source.shuffle(pieces)
        texts.append("".join(pieces))
    return texts


@ALL_TOOL_FORMATS
def test_random_text_raises_nothing_and_loses_nothing(tools: ToolFormat, random_texts: list[str]) -> None:
    source = random.Random(tools.name)
    formats = [OutputFormat(tools=tools, reasoning=known) for known in (None, *REASONING_FORMATS.values())]
    contexts = [
        ParserContext(tools=offered, is_reasoning_open=is_open) for offered in (TOOLS, {}) for is_open in (False, True)
    ]
    num_plain = 0
    for number, text in enumerate(random_texts):
        output_format, context = source.choice(formats), source.choices(contexts, (70, 15, 10, 5))[0]
        events = parse(output_format, context, [text])
        check_events(events, context)
        if not any(meaning in text for meaning in [*markers(tools), *TOOLS]):
            check_nothing_is_lost(text, events, output_format, context)
            num_plain += 1
        if number % 50 == 0:
            cut = source.randrange(len(text) + 1)
            assert parse(output_format, context, text) == events
            assert parse(output_format, context, [text[:cut], text[cut:]]) == events
    assert num_plain > NUM_TEXTS / 100


def check_events(events: list[OutputEvent], context: ParserContext) -> None:
    """Calls are numbered and come one after the other; those that end have an object as arguments."""
    num_begun, last_ended, arguments = 0, -1, ""
    for event in events:
        match event:
            case ContentText(text) | ReasoningText(text):
                assert text
            case ToolCallBegin(index=index, name=name):
                assert name and context.tools and index == num_begun
                num_begun, arguments = num_begun + 1, ""
            case ToolCallArguments(index, text):
                assert text and index == num_begun - 1 != last_ended
                arguments += text
            case ToolCallEnd(index):
                assert index == num_begun - 1 != last_ended
                assert isinstance(json.loads(arguments), dict)
                last_ended = index


def check_nothing_is_lost(
    text: str, events: list[OutputEvent], output_format: OutputFormat, context: ParserContext
) -> None:
    """Of a text in which nothing has a meaning."""
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningText))
    content = "".join(event.text for event in events if isinstance(event, ContentText))
    assert output_format.tools is not None
    if context.is_reasoning_open and (output_format.reasoning is not None or output_format.tools.parses_reasoning):
        assert (reasoning.strip(), content) == (text.strip(), "")
    else:
        assert (reasoning, content) == ("", text)


@ALL_TOOL_FORMATS
def test_time_is_linear(tools: ToolFormat) -> None:
    output_format, context = OutputFormat(tools=tools), ParserContext(tools=TOOLS)
    pieces = syntax_pieces(tools)
    for unit in sorted({"<", "{", "[", '"', "\\", " ", "a", "'", "1", *tools.markers, *pieces}):
        for begin in {"", begun_call(tools)}:
            check_linear(output_format, context, begin, unit)


@pytest.mark.parametrize("reasoning", REASONING_FORMATS.values(), ids=REASONING_FORMATS.keys())
def test_time_of_reasoning_is_linear(reasoning: ReasoningFormat) -> None:
    for unit in (reasoning.begin, reasoning.end, reasoning.end[:-1], reasoning.end[0], "\n", " ", "a"):
        context = ParserContext(tools=TOOLS, is_reasoning_open=True)
        check_linear(OutputFormat(tools=HERMES, reasoning=reasoning), context, "", unit)


def check_linear(output_format: OutputFormat, context: ParserContext, begin: str, unit: str) -> None:
    """Ten times the text takes about ten times as long; for a parser that looks back it would be a hundred times."""

    def seconds(num_characters: int) -> float:
        parser = new_parser(output_format, context)
        text = begin + unit * (num_characters // len(unit))
        started = time.thread_time()
        for place in range(0, len(text), 10):
            parser.feed(text[place : place + 10])
        parser.finish()
        return time.thread_time() - started

    short, long = seconds(2000), seconds(20_000)
    for _ in range(5):
        if long <= 15 * short:
            return
        short, long = min(short, seconds(2000)), min(long, seconds(20_000))
    assert long <= 25 * short, (begin, unit, short, long)
