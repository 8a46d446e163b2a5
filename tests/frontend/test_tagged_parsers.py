"""What the recordings of canitoolcall lack, for the parsers of formats whose arguments are no JSON."""

import json
from typing import Any

import pytest

from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engined.frontend.parsing.format import CallSyntax, OutputFormat, ToolFormat
from engined.frontend.parsing.formats import choose_format, new_parser
from engined.frontend.parsing.gemma4 import GEMMA4, GEMMA4_REASONING
from engined.frontend.parsing.glm import GLM45, GLM47
from engined.frontend.parsing.hermes import HERMES
from engined.frontend.parsing.literals import PYTHON, LiteralTranscoder
from engined.frontend.parsing.llama4_pythonic import LLAMA4_PYTHONIC
from engined.frontend.parsing.parameter_types import parameter_types
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.qwen3_coder import QWEN3_CODER
from engined.frontend.parsing.think import GLM45_THINK, THINK, THINK_WITHOUT_SEPARATOR
from tests.frontend.parsed_events import joined

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "note": {"type": ["string", "null"]},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "filter": {"type": "object"},
        "edits": {"type": "array"},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "kind": {"enum": ["1", "2"]},
        "place": {"$ref": "#/$defs/place"},
        "loop": {"$ref": "#/properties/loop"},
        "lost": {"$ref": "https://example.com/schema"},
        "any": {},
    },
    "$defs": {"place": {"allOf": [{"description": "a place"}, {"type": "string"}]}},
}
TOOLS: dict[str, Any] = {"run": SCHEMA, "stop": {}, "odd": {"properties": 7}}


def events_of(
    tools: ToolFormat, text: str, *, reasoning: Any = None, is_open: bool = False, offered: Any = TOOLS
) -> list[OutputEvent]:
    """The events of a text, the same however it is cut."""
    output_format = OutputFormat(tools=tools, reasoning=reasoning)
    context = ParserContext(tools=offered, is_reasoning_open=is_open)

    def parse(*pieces: str) -> list[OutputEvent]:
        parser = new_parser(output_format, context)
        return joined([event for piece in pieces for event in parser.feed(piece)] + parser.finish())

    whole = parse(text)
    assert parse(*text) == whole
    for cut in range(1, len(text)):
        assert parse(text[:cut], text[cut:]) == whole
    return whole


def call(name: str, arguments: str, index: int = 0) -> list[OutputEvent]:
    return [ToolCallBegin(index, name), ToolCallArguments(index, arguments), ToolCallEnd(index)]


def qwen(*parameters: tuple[str, str], name: str = "run") -> str:
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def glm(*parameters: tuple[str, str], name: str = "run") -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in parameters)
    return f"<tool_call>{name}{pairs}</tool_call>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "02139", "02139"),
        ("text", "null", "null"),
        ("text", "", ""),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", 'a < b </b> \\ "q" \x07\u2028', 'a < b </b> \\ "q" \x07\u2028'),
        ("note", "null", None),
        ("note", "nullable", "nullable"),
        ("note", "None", "None"),
        ("count", "-7", -7),
        ("count", "seven", "seven"),
        ("count", "007", "007"),
        ("ratio", "1e20", 1e20),
        ("ratio", "NaN", "NaN"),
        ("on", "True", True),
        ("on", "FALSE", False),
        ("filter", "{'a': [True, None, 1_000,], \"b\": 'it\\'s'}", {"a": [True, None, 1000], "b": "it's"}),
        ("filter", '{"a": "line\nbreak", "b": "\\ud83d\\ude00\\/"}', {"a": "line\nbreak", "b": "😀/"}),
        ("filter", "null", None),
        (
            "edits",
            '[{"old": "</parameter>\n</function>\n</tool_call>"}]',
            [{"old": "</parameter>\n</function>\n</tool_call>"}],
        ),
        ("edits", "two", "two"),
        ("either", "5", 5),
        ("either", "5 apples", "5 apples"),
        ("either", "0.5", "0.5"),
        ("kind", "1", "1"),
        ("place", "5", "5"),
        ("loop", "5", 5),
        ("lost", "true", True),
        ("any", "[1, 2]", [1, 2]),
        ("any", "[WIP] title", "[WIP] title"),
        ("any", "truth", "truth"),
        ("unknown", "True", True),
        ("unknown", "print(1)", "print(1)"),
    ],
)
def test_the_schema_tells_what_a_value_is(key: str, text: str, value: Any) -> None:
    for tools, written in ((QWEN3_CODER, qwen((key, text))), (GLM47, glm((key, text)))):
        begin, arguments, end = events_of(tools, written.replace('</tool_call>"', '</tool_call>"'))
        assert begin == ToolCallBegin(0, "run") and end == ToolCallEnd(0)
        assert isinstance(arguments, ToolCallArguments)
        assert json.loads(arguments.text) == {key: value}, tools.name


def test_a_tool_with_an_odd_schema_is_called_all_the_same() -> None:
    assert events_of(QWEN3_CODER, qwen(("a", "1"), name="odd")) == call("odd", '{"a": 1}')
    assert events_of(QWEN3_CODER, qwen(("a", "x"), name="of_nobody")) == call("of_nobody", '{"a": "x"}')


def test_a_schema_that_branches_without_end_is_read_in_no_time() -> None:
    levels = {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 50} for level in range(6)}
    schema = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": levels | {"d6": {"type": "integer"}}}
    assert parameter_types(schema, "a") == frozenset({"integer"})


def test_arguments_grow_with_the_text() -> None:
    parser = new_parser(OutputFormat(tools=QWEN3_CODER), ParserContext(tools=TOOLS))
    begun = parser.feed("<tool_call>\n<function=run>\n<parameter=text>\nHel")
    assert joined(begun) == [ToolCallBegin(0, "run"), ToolCallArguments(0, '{"text": "Hel')]
    assert parser.feed('lo "you"\n') == [ToolCallArguments(0, 'lo \\"you\\"')]
    assert parser.feed("</param") == []
    assert joined(parser.feed("eters>")) == [ToolCallArguments(0, "\\n</parameters>")]
    nested = "\n</parameter>\n<parameter=edits>\n[{'new': 'abc"
    assert joined(parser.feed(nested)) == [ToolCallArguments(0, '", "edits": [{"new": "abc')]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi <tool_call>\n<fun", [ContentText("Hi")]),
        ("<tool_call>\n<function=run>\n<para", []),
        ("<tool_call>\n<function=run>\n<parameter=text>", [ToolCallBegin(0, "run"), ToolCallArguments(0, '{"text": ')]),
        (
            "<tool_call>\n<function=run>\n<parameter=text>\nrm -rf /\n</para",
            [ToolCallBegin(0, "run"), ToolCallArguments(0, '{"text": "rm -rf /')],
        ),
        (
            "<tool_call>\n<function=run>\n<parameter=count>\n12",
            [ToolCallBegin(0, "run"), ToolCallArguments(0, '{"count": 12')],
        ),
        ("<tool_call>\n<function=run>\n<parameter=text>\na\n</parameter>\n</function>", call("run", '{"text": "a"}')),
        ("<tool_call>\n<function=run>\n<parameter=text>\na\n</function>", call("run", '{"text": "a"}')),
    ],
)
def test_a_text_that_breaks_off(text: str, expected: list[OutputEvent]) -> None:
    assert events_of(QWEN3_CODER, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Write <tool_call> before a call.",
        "<function=unknown>\n<parameter=a>\n1\n</parameter>\n</function>",
        "<tool_call>\n<function=run>\nno parameter\n</function>\n</tool_call>",
        "In C: a <b and <function= are text",
        " \n <",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    assert events_of(QWEN3_CODER, text) == [ContentText(text)]
    assert events_of(QWEN3_CODER, qwen(("text", "x")), offered={}) == [ContentText(qwen(("text", "x")))]


def test_calls_in_json_are_read_among_tagged_ones() -> None:
    json_call = '<tool_call>\n{"name": "run", "arguments": {"count": 1}}\n</tool_call>'
    text = f"{qwen(('count', '2'))}\n{json_call}\n{qwen(name='stop')}\nDone."
    expected = [*call("run", '{"count": 2}'), *call("run", '{"count": 1}', 1), *call("stop", "{}", 2)]
    assert events_of(QWEN3_CODER, text) == [*expected, ContentText("\nDone.")]
    glm_text = '<tool_call>{"name": "run", "arguments": {"count": 1}}</tool_call>' + glm(name="stop")
    assert events_of(GLM45, glm_text) == [*call("run", '{"count": 1}'), *call("stop", "{}", 1)]


def test_an_object_that_breaks_leaves_the_call_open() -> None:
    text = glm(("filter", '{"a": "b" "c"}'), ("text", "x")) + glm(name="stop")
    assert events_of(GLM47, text) == [
        ToolCallBegin(0, "run"),
        ToolCallArguments(0, '{"filter": {"a": "b"'),
        *call("stop", "{}", 1),
    ]


def written(syntax: CallSyntax, parameters: list[tuple[str, str]], arguments: str) -> str:
    """What a grammar by this syntax lets a model write: two calls of `run`."""
    if syntax.tagged is not None:
        tagged = syntax.tagged
        arguments = "".join(f"{tagged.before_key}{k}{tagged.after_key}{v}{tagged.after_value}" for k, v in parameters)
    one = f"{syntax.before_name}run{syntax.before_arguments}{arguments}{syntax.after_arguments}"
    return f"{syntax.before_calls}{one}{syntax.between_calls}{one}{syntax.after_calls}"


@pytest.mark.parametrize("tools", [QWEN3_CODER, GLM45, GLM47, GEMMA4, LLAMA4_PYTHONIC], ids=lambda tools: tools.name)
def test_each_parser_reads_what_its_syntax_writes(tools: ToolFormat) -> None:
    value = {"text": "a\\b", "filter": {"x": [1, None, '}"']}}
    parameters = [("text", "a\\b"), ("filter", json.dumps(value["filter"]))]
    for syntax in (tools.syntax, tools.syntax_if_tagged_fails):
        if syntax is None:
            continue
        events = events_of(tools, written(syntax, parameters, json.dumps(value)))
        assert [type(event) for event in events] == [ToolCallBegin, ToolCallArguments, ToolCallEnd] * 2
        for arguments in (events[1], events[4]):
            assert isinstance(arguments, ToolCallArguments) and json.loads(arguments.text) == value


def test_gemma_reasons_in_a_channel_and_calls_end_its_thoughts() -> None:
    text = '<|channel>thought\nHm.\n<channel|><|tool_call>call:run{text:<|"|>a<|"|>}<tool_call|>\n'
    expected = [ReasoningText("Hm."), *call("run", '{"text": "a"}')]
    assert events_of(GEMMA4, text, reasoning=GEMMA4_REASONING) == expected
    forgotten = 'Hm.\n<|tool_call>call:run{text:<|"|>a<|"|>}<tool_call|>'
    assert events_of(GEMMA4, forgotten, reasoning=GEMMA4_REASONING, is_open=True) == expected


def test_gemma_writes_strings_without_quotes_now_and_then() -> None:
    text = '<|tool_call>call:run{text:Paris at noon,"note":"a\\nb",count:+1,edits:[{<|"|>k<|"|>:<|"|>\\n<|"|>},]}'
    assert events_of(GEMMA4, text) == call(
        "run", '{"text": "Paris at noon", "note": "a\\nb", "count": 1, "edits": [{"k": "\\\\n"}]}'
    )


def test_pythonic_arguments_that_break_leave_the_call_open() -> None:
    assert events_of(LLAMA4_PYTHONIC, "[run(text='a', filter=open('x'))]") == [
        ToolCallBegin(0, "run"),
        ToolCallArguments(0, '{"text": "a", "filter": '),
        ContentText("('x'))]"),
    ]


@pytest.mark.parametrize("text", ["[1, 2, 3]", "[run('x')]", "[nobody(a=1)]", "[run", "[]", "See [run(a=1)]"])
def test_lists_that_are_no_calls_are_content(text: str) -> None:
    assert events_of(LLAMA4_PYTHONIC, text) == [ContentText(text)]


def test_lists_of_calls_on_lines_of_their_own() -> None:
    text = '[stop()]\n[{"name": "stop", "arguments": {}}]\n[run(count=1)]\nDone.'
    expected = [*call("stop", "{}"), *call("stop", "{}", 1), *call("run", '{"count": 1}', 2), ContentText("\nDone.")]
    assert events_of(LLAMA4_PYTHONIC, text) == expected


def test_pythonic_calls_anywhere_behind_their_marker() -> None:
    text = "Now: <|python_start|>[run(text='''a\n'b' ''', ratio=.5,), stop()]<|python_end|>"
    assert events_of(LLAMA4_PYTHONIC, text) == [
        ContentText("Now: "),
        *call("run", '{"text": "a\\n\'b\' ", "ratio": 0.5}'),
        *call("stop", "{}", 1),
    ]


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"'\x41\u00e9\U0001F600\101\q\''", "Aé😀A\\q'"),
        ("('a', \"b\", ())", ["a", "b", []]),
        ("{1: 'one', 'two': 0x10}", {"1": "one", "two": 16}),
        ("'\\\n'", ""),
        ("['', \"\", '''''', \"\"\"it's\"\"\"]", ["", "", "", "it's"]),
    ],
)
def test_python_literals_become_json(literal: str, value: Any) -> None:
    for pieces in ([literal], list(literal)):
        transcoder, rest = LiteralTranscoder(PYTHON), ""
        for number, piece in enumerate(pieces, 1):
            rest += piece
            rest = rest[transcoder.feed(rest, 0, is_over=number == len(pieces)) :]
        assert transcoder.is_done and json.loads(transcoder.take()) == value


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("<tool_call>\n<function=' + name + '>\n<parameter=' <think>", QWEN3_CODER, THINK),
        ("<tool_call>{name}\n<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value> <think>", GLM45, GLM45_THINK),
        ("<tool_call>{name}<arg_key>{k}</arg_key><arg_value>{v}</arg_value> </think>", GLM47, THINK_WITHOUT_SEPARATOR),
        ("<|tool_call>call: <|channel>thought\n<channel|>", GEMMA4, GEMMA4_REASONING),
        ("in the format of [func_name1(params_name1=params_value1, ...)]", LLAMA4_PYTHONIC, None),
    ],
)
def test_the_template_tells_the_format(template: str, tools: ToolFormat, reasoning: Any) -> None:
    chosen = choose_format(template, "auto", "auto", ['<|"|>', "<|channel>", "<|im_end|>"])
    assert (chosen.tools, chosen.reasoning) == (tools, reasoning)
    assert chosen.kept_tokens == ({'<|"|>', "<|channel>"} if tools is GEMMA4 else frozenset())


@pytest.mark.parametrize("cut", range(1, len("</tool_call>") + 1))
def test_a_cut_marker_behind_a_call_is_no_content(cut: int) -> None:
    """An answer may reach max_tokens there."""
    events = events_of(HERMES, '<tool_call>\n{"name": "stop", "arguments": {}}\n' + "</tool_call>"[:cut])
    assert [type(event) for event in events] == [ToolCallBegin, ToolCallArguments, ToolCallEnd]


def test_what_follows_a_call_is_content_once_it_is_no_marker() -> None:
    events = events_of(HERMES, '<tool_call>\n{"name": "stop", "arguments": {}}\n</b> is bold')
    assert events[-1] == ContentText("\n</b> is bold")
