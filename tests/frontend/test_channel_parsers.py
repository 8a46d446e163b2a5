"""What the recordings of canitoolcall lack, for gpt-oss, DeepSeek and Kimi: parts of their answers that have names."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from engined.frontend.parsing.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from engined.frontend.parsing.dsml import DEEPSEEK_V4, DEEPSEEK_V32, DEEPSEEK_V41
from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engined.frontend.parsing.format import OutputFormat, ToolFormat
from engined.frontend.parsing.formats import choose_format, new_parser
from engined.frontend.parsing.harmony import OPENAI
from engined.frontend.parsing.kimi_k2 import KIMI_K2
from engined.frontend.parsing.kimi_k3 import KIMI_K3
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.think import THINK
from tests.frontend.parsed_events import joined

TOOLS: Mapping[str, dict[str, Any]] = {"get_weather": {}, "write": {}}
CALL = [ToolCallBegin(0, "get_weather"), ToolCallArguments(0, '{"city": "Paris"}'), ToolCallEnd(0)]

SECTION = "<|tool_calls_section_begin|>"
SECTION_END = "<|tool_calls_section_end|>"
K2_CALL = '<|tool_call_begin|>functions.get_weather:3<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
TO_WEATHER = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
RESPONSE_END = "<|close|>response<|sep|>"


def events_of(
    tools: ToolFormat, text: str, *, is_open: bool = False, offered: Mapping[str, dict[str, Any]] = TOOLS
) -> list[OutputEvent]:
    """The events of a text, the same however it is cut."""
    output_format = OutputFormat(tools=tools, reasoning=THINK)
    context = ParserContext(tools=offered, is_reasoning_open=is_open)

    def parse(*pieces: str) -> list[OutputEvent]:
        parser = new_parser(output_format, context)
        return joined([event for piece in pieces for event in parser.feed(piece)] + parser.finish())

    whole = parse(text)
    assert parse(*text) == whole
    for cut in range(1, len(text), 1 if len(text) < 400 else 37):
        assert parse(text[:cut], text[cut:]) == whole
    return whole


def dsml(*values: str, name: str = "write") -> str:
    lines = "".join(f"<｜DSML｜parameter {value}</｜DSML｜parameter>\n" for value in values)
    return f'\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{name}">\n{lines}</｜DSML｜invoke>\n</｜DSML｜tool_calls>'


def xtml(*values: str, name: str = "write") -> str:
    arguments = "".join(f"<|open|>argument {value}<|close|>argument<|sep|>" for value in values)
    call = f'<|open|>call tool="{name}" index="1"<|sep|>{arguments}<|close|>call<|sep|>'
    return f"{RESPONSE_END}<|open|>tools<|sep|>{call}<|close|>tools<|sep|><|close|>message<|sep|>"


def arguments_of(events: list[OutputEvent]) -> Any:
    assert isinstance(events[-1], ToolCallEnd)
    return json.loads("".join(event.text for event in events if isinstance(event, ToolCallArguments)))


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("Hello", [ContentText("Hello")]),
        (" to be continued", [ContentText(" to be continued")]),
        ("a <| b", [ContentText("a <| b")]),
        (f"Use <|end|> and <|start|> well.{FINAL}Done", [ContentText("Use <|end|> and <|start|> well.Done")]),
        ("<|channel|>analysis<|message|>a<|end|> b", [ReasoningText("a<|end|> b")]),
        (
            "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
            [ReasoningText("a"), ContentText("b")],
        ),
        (f"<|channel|>analysis<|message|>a{FINAL}", [ReasoningText("a")]),
        (f"{TO_WEATHER}{{}}", [ToolCallBegin(0, "get_weather"), ToolCallArguments(0, "{}"), ToolCallEnd(0)]),
        (f"{TO_WEATHER}", []),
        (f"{TO_WEATHER}no JSON<|call|>", [ContentText("no JSON")]),
        (
            f"{TO_WEATHER}{{'city': 1}}{FINAL}Done",
            [ToolCallBegin(0, "get_weather"), ToolCallArguments(0, "{'city': 1}"), ContentText("Done")],
        ),
        (
            '<|channel|>commentary to=write<|message|>{"a": 1}',
            [ToolCallBegin(0, "write"), ToolCallArguments(0, '{"a": 1}'), ToolCallEnd(0)],
        ),
        (f"<|channel|>analysis to=browser.search<|message|>{{}}{FINAL}Done", [ContentText("Done")]),
        ("<|channel|>commentary to=user<|message|>Wait.", [ContentText("Wait.")]),
        (f"<|channel|>{'x' * 700}", [ContentText("x" * 668)]),
        (" " * 700 + "Hi", [ContentText(" " * 700 + "Hi")]),
    ],
)
def test_harmony(text: str, events: list[OutputEvent]) -> None:
    assert events_of(OPENAI, text) == events


def test_harmony_continues_what_the_prompt_has_begun() -> None:
    assert events_of(OPENAI, f"so it is{FINAL}Yes", is_open=True) == [ReasoningText("so it is"), ContentText("Yes")]


def test_harmony_without_tools_gives_calls_as_content() -> None:
    text = f'{TO_WEATHER}{{"city": "Paris"}}<|call|><|start|>assistant<|channel|>final<|message|>.'
    assert events_of(OPENAI, text, offered={}) == [ContentText('{"city": "Paris"}.')]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (f"{SECTION}{K2_CALL}{SECTION_END}\n", CALL),
        (f"{SECTION}{K2_CALL}{SECTION_END}\n.", [*CALL, ContentText("\n.")]),
        (f"{SECTION}\n{SECTION_END}", []),
        (f"{SECTION}no call{SECTION_END}.", [ContentText(f"{SECTION}no call{SECTION_END}.")]),
        (f"{SECTION}<|tool_call_begin|>functions.get_wea", []),
        (f"{SECTION}<|tool_call_begin|>get_weather{K2_CALL}{SECTION_END}", CALL),
        (
            f"{SECTION}<|tool_call_begin|>a:b:0<|tool_call_argument_begin|> <|tool_call_end|>{SECTION_END}",
            [ToolCallBegin(0, "a:b"), ToolCallArguments(0, "{}"), ToolCallEnd(0)],
        ),
        (
            f"{SECTION}<|tool_call_begin|>write:0<|tool_call_argument_begin|>{{]oops<|tool_call_end|>{SECTION_END}.",
            [ToolCallBegin(0, "write"), ToolCallArguments(0, "{]oops"), ContentText(".")],
        ),
        (f"<think>Call.{SECTION}{K2_CALL}{SECTION_END}", [ReasoningText("Call."), *CALL]),
    ],
)
def test_kimi_k2(text: str, events: list[OutputEvent]) -> None:
    assert events_of(KIMI_K2, text) == events


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('string="true">', ""),
        ('string="true"> \n', " \n"),
        ('string="true">{"a": 1}', '{"a": 1}'),
        ('string="true">a </｜DSML｜parameter> b\n', "a </｜DSML｜parameter> b\n"),
        ('string="true">" \\ \x07 \u2028 🌸', '" \\ \x07 \u2028 🌸'),
        ('string="false">"a\\u00e9"', "aé"),
        ('string="false"> -1.5e3 ', -1500.0),
        ('string="false">\n[1, {"a": null}]\n', [1, {"a": None}]),
        ('string="false">007', "007"),
        ('string="false">Paris, France', "Paris, France"),
        ('string="false">NaN', "NaN"),
        ('string="false">12 apples', "12 apples"),
    ],
)
def test_dsml_values(value: str, expected: Any) -> None:
    assert arguments_of(events_of(DEEPSEEK_V4, dsml(f'name="a" {value}'))) == {"a": expected}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('type="string"<|sep|>', ""),
        ('type="string"<|sep|>a<|close|>argument<|sep|>b', "a<|close|>argument<|sep|>b"),
        ('type="object"<|sep|>{"a": []}', {"a": []}),
        ('type="number"<|sep|>1.5', 1.5),
        ('type="boolean"<|sep|>yes', "yes"),
    ],
)
def test_xtml_values(value: str, expected: Any) -> None:
    events = events_of(KIMI_K3, xtml(f'key="a&lt;&quot;&amp;lt;" {value}'))
    assert arguments_of(events) == {'a<"&lt;': expected}


@pytest.mark.parametrize("tools", [DEEPSEEK_V4, KIMI_K3])
def test_strings_are_given_out_as_they_grow(tools: ToolFormat) -> None:
    text = (
        dsml('name="a" string="true">' + "x" * 50)
        if tools is DEEPSEEK_V4
        else xtml('key="a" type="string"<|sep|>' + "x" * 50)
    )
    parser = tools.new_parser(ParserContext(tools=TOOLS))
    behind = text.index("x" * 50) + 10
    events = joined(parser.feed(text[:behind]))
    assert events == [ToolCallBegin(0, "write"), ToolCallArguments(0, '{"a": "' + "x" * 10)]
    assert parser.feed("x") == [ToolCallArguments(0, "x")]


@pytest.mark.parametrize("tools", [DEEPSEEK_V4, KIMI_K3])
def test_text_that_breaks_off_gives_no_tag(tools: ToolFormat) -> None:
    text = dsml('name="a" string="true">a < b') if tools is DEEPSEEK_V4 else xtml('key="a" type="string"<|sep|>a < b')
    whole_tokens = re.findall(r"<\|[a-z]+\|>|｜DSML｜|.", text, re.DOTALL)
    for length in range(len(whole_tokens)):
        parser = tools.new_parser(ParserContext(tools=TOOLS))
        events = parser.feed("".join(whole_tokens[:length])) + parser.finish()
        texts = "".join(event.text for event in events if isinstance(event, ContentText | ToolCallArguments))
        assert texts.strip("\n") in ("", "<") or '{"a": "a < b"}'.startswith(texts)


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("\n\n", [ContentText("\n\n")]),
        (
            f"a\n\n{dsml()}",
            [ContentText("a\n\n"), ToolCallBegin(0, "write"), ToolCallArguments(0, "{}"), ToolCallEnd(0)],
        ),
        (
            '<｜DSML｜tool_calls><｜DSML｜invoke name="f">{"a": 1}</｜DSML｜invoke>',
            [ContentText('<｜DSML｜tool_calls><｜DSML｜invoke name="f">{"a": 1}</｜DSML｜invoke>')],
        ),
        (
            dsml('name="a" string="false">[}'),
            [
                ToolCallBegin(0, "write"),
                ToolCallArguments(0, '{"a": ['),
                ContentText("}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"),
            ],
        ),
        (
            f"<think>Call.{dsml(name='get_weather')}",
            [ReasoningText("Call."), ToolCallBegin(0, "get_weather"), ToolCallArguments(0, "{}"), ToolCallEnd(0)],
        ),
        (
            f"{dsml()}{dsml()}.",
            [
                *(ToolCallBegin(0, "write"), ToolCallArguments(0, "{}"), ToolCallEnd(0)),
                *(ToolCallBegin(1, "write"), ToolCallArguments(1, "{}"), ToolCallEnd(1)),
                ContentText("."),
            ],
        ),
    ],
)
def test_dsml_calls(text: str, events: list[OutputEvent]) -> None:
    assert events_of(DEEPSEEK_V4, text) == events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("Hello", [ContentText("Hello")]),
        (f"a {RESPONSE_END} b{RESPONSE_END}", [ContentText(f"a {RESPONSE_END} b")]),
        (
            f"<|open|>think<|sep|>a<|close|>think<|sep|>\n<|open|>response<|sep|>b{RESPONSE_END}",
            [ReasoningText("a"), ContentText("b")],
        ),
        (f"a{RESPONSE_END}<|close|>message<|sep|>b", [ContentText("ab")]),
        (f"{RESPONSE_END}<|open|>tools<|sep|>what?", [ContentText("what?")]),
    ],
)
def test_kimi_k3(text: str, events: list[OutputEvent]) -> None:
    assert events_of(KIMI_K3, text) == events


def test_kimi_k3_without_tools_gives_calls_as_content() -> None:
    text = xtml()
    assert events_of(KIMI_K3, text, offered={}) == [ContentText(text.removeprefix(RESPONSE_END))]


@pytest.mark.parametrize("tools", [OPENAI, DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2], ids=lambda tools: tools.name)
def test_what_the_syntax_of_a_format_writes_is_read(tools: ToolFormat) -> None:
    syntax = tools.syntax
    assert syntax is not None and syntax.trigger is not None
    call = f'{syntax.before_name}get_weather{syntax.before_arguments}{{"city": "Paris"}}{syntax.after_arguments}'
    calls = [call] if syntax.is_single else [call, call]
    text = f"{syntax.before_calls}{syntax.between_calls.join(calls)}{syntax.after_calls}"
    assert text.startswith(syntax.trigger)
    second = [ToolCallBegin(1, "get_weather"), ToolCallArguments(1, '{"city": "Paris"}'), ToolCallEnd(1)]
    assert events_of(tools, text) == (CALL if syntax.is_single else CALL + second)


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ '<|start|>assistant<|channel|>final<|message|>' + content + '<|end|>' }}", OPENAI, "openai_gptoss"),
        (
            "'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '\\n' + '```json' </think>",
            DEEPSEEK_V3,
            "think",
        ),
        ("'<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments", DEEPSEEK_V31, None),
        ("{% set dsml = '｜DSML｜' %}'<' + dsml + 'function_calls>'", DEEPSEEK_V32, None),
        ("{% set dsml = '｜DSML｜' %}{% if message.tool_calls %}'<' + dsml + 'tool_calls>'", DEEPSEEK_V4, None),
        ("{% set dsml = '｜DSML｜' %}{% if message.tool_calls %}'<' + dsml + ' calls>'", DEEPSEEK_V41, None),
        ("'<|tool_calls_section_begin|>' '<|tool_call_begin|>' call.id", KIMI_K2, None),
        ("'<|open|>message role=\"assistant\"<|sep|>'", KIMI_K3, "kimi_k3"),
    ],
)
def test_the_format_is_known_by_the_template(template: str, tools: ToolFormat, reasoning: str | None) -> None:
    special_tokens = ["<|message|>", "｜DSML｜", "<｜tool▁sep｜>", "<|tool_call_begin|>", "<|open|>", "<|im_end|>"]
    chosen = choose_format(template, "auto", "auto", special_tokens)
    assert chosen.tools is tools
    assert (chosen.reasoning.name if chosen.reasoning else None) == reasoning
    assert chosen.kept_tokens == {token for token in special_tokens if any(token in marker for marker in tools.markers)}
