"""Which format a model has, where its text begins, and what our own formats make of texts that no suite has."""

import pytest

from engined.errors import ConfigError
from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engined.frontend.parsing.format import OutputFormat
from engined.frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS, choose_format
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.start_state import continued_state, reasoning_state
from tests.frontend.parsed_events import parse

THINK = REASONING_FORMATS["think"]
QWEN3_TEMPLATE = "{{ tools }}<tool_call>\n</tool_call><think>\n\n</think>\n\n"


def read(tools: str, text: str, *, reasoning: str | None = None, is_open: bool = False) -> list[OutputEvent]:
    output_format = OutputFormat(
        tools=TOOL_FORMATS[tools], reasoning=None if reasoning is None else REASONING_FORMATS[reasoning]
    )
    context = ParserContext(tools={"f": {}, "g": {}}, is_reasoning_open=is_open)
    events = parse(output_format, context, [text])
    assert parse(output_format, context, text) == events
    return events


def call(index: int, name: str, arguments: str, call_id: str | None = None) -> list[OutputEvent]:
    return [ToolCallBegin(index, name, call_id), ToolCallArguments(index, arguments), ToolCallEnd(index)]


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        (QWEN3_TEMPLATE, "hermes", "think"),
        ("<tool_call>\n<function=f>\n<parameter=", "qwen3_coder", None),
        ("<tool_call>{{ name }}<arg_key></arg_key>\n<arg_value><think>", "glm45", "glm45"),
        ('<|start_header_id|>{{ tools }}"parameters": ', "llama3_json", None),
        ("[TOOL_CALLS] [", "mistral_v3", None),
        ("[TOOL_CALLS]{{ name }}[ARGS][THINK]", "mistral", "mistral"),
        ("{{ messages }}", "json", None),
        (None, "json", None),
    ],
)
def test_the_template_tells_the_format(template: str | None, tools: str, reasoning: str | None) -> None:
    chosen = choose_format(template, "auto", "auto", [])
    assert chosen.tools is not None and chosen.tools.name == tools
    assert (None if chosen.reasoning is None else chosen.reasoning.name) == reasoning


def test_options_overrule_the_template() -> None:
    chosen = choose_format(QWEN3_TEMPLATE, "mistral", "none", [])
    assert (chosen.tools, chosen.reasoning) == (TOOL_FORMATS["mistral"], None)
    assert choose_format(QWEN3_TEMPLATE, "none", "none", ["<tool_call>"]) == OutputFormat()
    with pytest.raises(ConfigError, match="--tool-call-parser 'hermse' is unknown: choose auto, none, .*hermes"):
        choose_format(QWEN3_TEMPLATE, "hermse", "auto", [])
    with pytest.raises(ConfigError, match="--reasoning-parser"):
        choose_format(QWEN3_TEMPLATE, "auto", "thinking", [])


def test_only_special_tokens_that_are_looked_for_are_kept() -> None:
    kept = choose_format(QWEN3_TEMPLATE, "auto", "auto", ["<tool_call>", "</think>", "<|im_end|>", ""]).kept_tokens
    assert kept == {"<tool_call>", "</think>"}


@pytest.mark.parametrize(
    ("tail", "state"),
    [
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "closed"),
        ("user: what does <think> mean?\nassistant:", "none"),
    ],
)
def test_the_end_of_the_prompt_tells_where_the_text_begins(tail: str, state: str) -> None:
    assert reasoning_state(THINK, tail) == state


@pytest.mark.parametrize(
    ("message", "state"), [("<think>Let me", "open"), ("<think>a</think>b", "closed"), ("The answer", "none")]
)
def test_a_continued_message_tells_where_the_text_begins(message: str, state: str) -> None:
    assert continued_state(THINK, message) == state


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (' \n{"name": "f", "arguments": {"a": 1}}\n', call(0, "f", '{"a": 1}')),
        ('```json\n{"name": "f", "parameters": {}}\n```', call(0, "f", "{}")),
        (
            '[{"name": "f", "arguments": {}}, {"arguments": {"b": [2]}, "name": "g"}]',
            [*call(0, "f", "{}"), *call(1, "g", '{"b": [2]}')],
        ),
        ('{"name": "f", "arguments": {}}\nDone.', [*call(0, "f", "{}"), ContentText("\nDone.")]),
        ('{"name": "h", "arguments": {}}', [ContentText('{"name": "h", "arguments": {}}')]),
        ('{"name": "f"}', [ContentText('{"name": "f"}')]),
        ('```json\n{"a": 1}\n```', [ContentText('```json\n{"a": 1}\n```')]),
        ('```json\n{"name": "f", "argu', [ContentText('```json\n{"name": "f", "argu')]),
        ('Call {"name": "f", "arguments": {}}', [ContentText('Call {"name": "f", "arguments": {}}')]),
        ('{"name": "f", "arguments": {"a": "x', [ToolCallBegin(0, "f"), ToolCallArguments(0, '{"a": "x')]),
        (
            '{"name": "f", "arguments": {"a": x}}',
            [ToolCallBegin(0, "f"), ToolCallArguments(0, '{"a": '), ContentText("x}}")],
        ),
        ("[] ", [ContentText("[] ")]),
        (" \n", [ContentText(" \n")]),
    ],
)
def test_bare_json_is_a_call_if_it_names_a_tool(text: str, events: list[OutputEvent]) -> None:
    assert read("json", text) == events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ('<tool_call>\n{"name": "h", "arguments": {}}\n</tool_call>\n', call(0, "h", "{}")),
        ('a \n<tool_call>\n{"na', [ContentText("a")]),
        ("a \n<tool_call>no</tool_call> \n", [ContentText("a \n<tool_call>no</tool_call> \n")]),
        ("a <tool_", [ContentText("a <tool_")]),
        (
            '<tool_call>{"name": "f", "arguments": {}}\n<tool_call>{"name": "g", "arguments": {}}</tool_call>\n b',
            [*call(0, "f", "{}"), *call(1, "g", "{}"), ContentText("\n b")],
        ),
    ],
)
def test_hermes_between_and_around_tags(text: str, events: list[OutputEvent]) -> None:
    assert read("hermes", text) == events


def test_mistral_gives_the_id_that_the_model_wrote() -> None:
    text = '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"a": 1}[TOOL_CALLS]g{}'
    assert read("mistral", text) == [*call(0, "f", '{"a": 1}', "a1b2c3d4e"), *call(1, "g", "{}")]


def test_llama_writes_several_calls_and_code_for_its_interpreter() -> None:
    text = '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": 1}}'
    assert read("llama3_json", text) == [*call(0, "f", "{}"), *call(1, "g", '{"a": 1}')]
    assert read("llama3_json", "<|python_tag|>print(1)") == [ContentText("<|python_tag|>print(1)")]


@pytest.mark.parametrize(
    ("text", "is_open", "events"),
    [
        ("<think>\na\n\nb\n</think>\n\nc\n", False, [ReasoningText("a\n\nb"), ContentText("c\n")]),
        ("<think>\na</think>b<think>c</think>", True, [ReasoningText("a"), ContentText("b<think>c</think>")]),
        ("a</think>", False, [ContentText("a</think>")]),
        ("a</thin", True, [ReasoningText("a</thin")]),
        (" <thin", False, [ContentText(" <thin")]),
        ("\n</think>\n\n", True, []),
    ],
)
def test_reasoning_is_one_block_at_the_beginning(text: str, is_open: bool, events: list[OutputEvent]) -> None:
    assert read("hermes", text, reasoning="think", is_open=is_open) == events


@pytest.mark.parametrize("tools", ["openai", "kimi_k3"])
@pytest.mark.parametrize("reasoning", ["none", "think"])
def test_formats_that_exclude_each_other(tools: str, reasoning: str) -> None:
    with pytest.raises(ConfigError, match=f"--reasoning-parser {reasoning}: .* give --tool-call-parser none too"):
        choose_format(None, tools, reasoning, ())
    assert choose_format(None, "none", reasoning, ()).tools is None


def test_formats_that_belong_together() -> None:
    for tools, reasoning in (
        ("openai", "openai_gptoss"),
        ("kimi_k3", "kimi_k3"),
        ("hermes", "none"),
        ("openai", "auto"),
    ):
        chosen = choose_format(None, tools, reasoning, ()).tools
        assert chosen is not None and chosen.name == tools
