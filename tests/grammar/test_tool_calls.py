"""Calls by grammar: whatever the mask lets through is read by the format's own parser as calls that validate."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engined.errors import GrammarError
from engined.frontend.parsing.format import ToolFormat
from engined.frontend.parsing.formats import TOOL_FORMATS
from engined.frontend.parsing.harmony import OPENAI_REASONING
from engined.frontend.parsing.tool_grammar import build_tool_grammar
from engined.grammar.compiler import GrammarCompiler
from engined.grammar.json_calls import arguments_schema
from engined.grammar.vocabulary import load_vocabulary
from engined.protocol.tool_grammar import GrammarTool
from engined.tokenization.byte_level import CHARACTER_OF_BYTE
from engined.tokenization.tokenizer import ModelTokenizer
from tests.end_to_end.tool_schemas import load_schemas
from tests.grammar.tool_walks import Walker, check_calls, parse, phrases_of

FORMATS = [tool_format for tool_format in TOOL_FORMATS.values() if tool_format.syntax is not None]
EOS_TOKEN_ID = 256
DEFINITIONS = {
    "$defs": {
        "color": {"enum": ["red", "green"]},
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}},
    }
}


def properties(**members: Any) -> dict[str, Any]:
    """The schema of an object whose first property is required."""
    return {"type": "object", "properties": members, "required": list(members)[:1], "additionalProperties": False}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
ODD_SCHEMAS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "any": {"type": "object"},
    "none": {"type": "object", "properties": {}, "additionalProperties": False},
    "untyped": {"properties": {"a": INTEGER}, "required": ["a"]},
    "types": {"type": ["object", "null"], "properties": {"a": {"type": "boolean"}}},
    "get": properties(city=STRING, days=INTEGER, is_detailed={"type": "boolean"}),
    "get_more": properties(cities={"type": "array", "items": STRING, "minItems": 1}, limits={"type": "object"}),
    "lengths": properties(a=STRING | {"minLength": 2, "maxLength": 4}, b=STRING | {"minLength": 1}),
    "patterns": properties(a=STRING | {"pattern": "^[a-c]{2,3}$"}, b=STRING | {"pattern": "x|y"}),
    "pattern_and_length": properties(a=STRING | {"pattern": r"^\d+(-\d+)?$", "maxLength": 5}),
    "dates": properties(day=STRING | {"format": "date"}, link=STRING | {"format": "uri"}),
    "enums": properties(a={"enum": ["one", "two words"]}, b=STRING | {"const": "x"}, c={"enum": [1, None, [2]]}),
    "nullable": properties(a={"anyOf": [STRING, {"type": "null"}]}, b={"type": ["string", "null"]}),
    "nullable_enum": properties(a={"anyOf": [{"enum": ["x", "y"]}, {"type": "null"}]}, b={"type": ["integer", "null"]}),
    "unions": properties(a={"anyOf": [STRING | {"pattern": "^x"}, INTEGER]}, b={"type": ["string", "boolean"]}),
    "odd_union": properties(a={"enum": ["1", 2]}),
    "untold": properties(a={}),
    "references": properties(a={"$ref": "#/$defs/color"}, b={"$ref": "#/$defs/node"}) | DEFINITIONS,
    "root_reference": DEFINITIONS | {"$ref": "#/$defs/node"},
    "self_reference": {"type": "object", "properties": {"a": {"$ref": "#"}, "b": INTEGER}},
    "top_union": {"anyOf": [properties(a=INTEGER), properties(b=STRING)]},
    "more": {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": INTEGER},
    "by_pattern": {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": False},
    "unnamed": {"type": "object", "properties": {}, "required": ["a"]},
    "keys": properties(**{"é a": STRING, "a/b": INTEGER, "c-d": STRING}),
    "odd_keys": properties(**{"<x>": STRING, "y\n": INTEGER}),
}
"""By the name of their tool; each is within what is enforced somewhere."""
ODD_TOOLS = [GrammarTool(name=name, parameters=schema) for name, schema in ODD_SCHEMAS.items()]
GET = GrammarTool(name="get", parameters=ODD_SCHEMAS["get"])


@pytest.fixture(scope="module")
def marked_backend() -> Tokenizer:
    """A token for each byte, EOS, and one for each marker: as in real tokenizers, some special, and some not."""
    vocab = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}
    backend = Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|eos|>", special=True, normalized=False)])
    for index, marker in enumerate(sorted({marker for tool_format in FORMATS for marker in tool_format.markers})):
        backend.add_tokens([AddedToken(marker, special=index % 2 == 0, normalized=False)])
    return backend


@pytest.fixture(scope="module")
def special_token_ids(marked_backend: Tokenizer) -> dict[str, int]:
    added = marked_backend.get_added_tokens_decoder()
    return {token.content: token_id for token_id, token in added.items() if token.special}


@pytest.fixture(scope="module")
def marked_compiler(marked_backend: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(lambda: marked_backend, marked_backend.get_vocab_size(), (EOS_TOKEN_ID,), deadline_s=5.0)


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
def test_every_schema_in_every_format(
    marked_backend: Tokenizer,
    marked_compiler: GrammarCompiler,
    special_token_ids: Mapping[str, int],
    tool_format: ToolFormat,
) -> None:
    walker = Walker(marked_backend, (EOS_TOKEN_ID,), seed=1)
    num_texts = 0
    for tool in ODD_TOOLS:
        spec = build_tool_grammar(
            tool_format, [tool], mode="required", max_calls=2, special_token_ids=special_token_ids
        )
        text = walker.walk(marked_compiler.compile(spec), phrases_of(tool_format.syntax), is_forced_at_once=True)
        if text is not None:
            num_texts += 1
            content, calls = parse(tool_format, text, [tool])
            assert content == "" and 1 <= len(calls) <= 2, text
            check_calls(calls, [tool])
    assert num_texts >= 0.8 * len(ODD_TOOLS)


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
def test_text_and_calls(
    marked_backend: Tokenizer,
    marked_compiler: GrammarCompiler,
    special_token_ids: Mapping[str, int],
    tool_format: ToolFormat,
) -> None:
    walker = Walker(marked_backend, (EOS_TOKEN_ID,), seed=2)
    content_prefix = OPENAI_REASONING.content_prefix if tool_format.name == "openai" else ""
    spec = build_tool_grammar(
        tool_format,
        ODD_TOOLS,
        mode="auto",
        max_calls=3,
        special_token_ids=special_token_ids,
        content_prefix=content_prefix,
    )
    grammar = marked_compiler.compile(spec)
    num_calls = 0
    begin = tool_format.syntax.before_calls + tool_format.syntax.before_name
    for index in range(12):
        prefix = ("Let me see: {1} ", "  ", "")[index % 3]
        written = content_prefix + prefix if prefix else begin
        text = walker.walk(grammar, phrases_of(tool_format.syntax), prefix=written)
        if text is not None:
            content, calls = parse(tool_format, text, ODD_TOOLS)
            assert content.startswith(prefix.rstrip()), text
            assert len(calls) <= 3
            check_calls(calls, ODD_TOOLS)
            num_calls += len(calls)
    assert num_calls > 0


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "json"])
def test_real_schemas_with_a_real_tokenizer(
    compiler: GrammarCompiler, grammar_tokenizer: ModelTokenizer, name: str
) -> None:
    schemas = [schema for schema in load_schemas().values() if schema.get("type", "object") == "object"]
    tools = [GrammarTool(name=f"tool_{index}", parameters=schema) for index, schema in enumerate(schemas[::3])]
    tool_format = TOOL_FORMATS[name]
    spec = build_tool_grammar(tool_format, tools, mode="required", max_calls=2, special_token_ids={})
    grammar = compiler.compile(spec)
    walker = Walker(grammar_tokenizer.backend, (0, 2), seed=3)
    texts = [walker.walk(grammar, phrases_of(tool_format.syntax), is_forced_at_once=True) for _ in range(6)]
    whole = [text for text in texts if text is not None]
    assert len(whole) >= 4
    for text in whole:
        content, calls = parse(tool_format, text, tools)
        assert content == "" and calls
        check_calls(calls, tools)


def accepts(compiler: GrammarCompiler, backend: Tokenizer, text: str, **options: Any) -> bool:
    """Whether a grammar of tool calls lets through `text`, to its end."""
    added = backend.get_added_tokens_decoder()
    special_token_ids = {token.content: token_id for token_id, token in added.items() if token.special}
    options = {"mode": "required", "max_calls": 2, "special_token_ids": special_token_ids} | options
    matcher = compiler.compile(build_tool_grammar(**options)).new_matcher()
    walker = Walker(backend, (EOS_TOKEN_ID,), seed=0)
    token_ids = backend.encode(text, add_special_tokens=False).ids
    return walker.take(matcher, token_ids) == token_ids and matcher.is_accepting()


BARE: list[tuple[dict[str, Any], list[str], list[str]]] = [
    # schema of one parameter, values that may stand between the tags, values that may not
    (STRING, ["", "5", "null", "a\n<b>\n\n"], ["a</parameter>b", "<tool_call>", "</function>"]),
    (STRING | {"minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
    (STRING | {"pattern": "^a|b$"}, [], []),
    (STRING | {"pattern": r"^[a-c]\d$"}, ["a1"], ["xa1", "a12", "a"]),
    (STRING | {"pattern": "b+"}, ["abc", "b"], ["ac", ""]),
    (STRING | {"pattern": "(a|b)$"}, ["xa", "b"], ["ax"]),
    (STRING | {"pattern": "a^b"}, [], []),
    (STRING | {"format": "date"}, ["2024-02-29"], ["2023-02-29", "today"]),
    (STRING | {"format": "uri"}, ["https://x.y", "anything"], []),
    ({"enum": ["a", "b c"]}, ["a", "b c"], ["b", "a "]),
    ({"const": "x"}, ["x"], ["y"]),
    ({"anyOf": [STRING | {"maxLength": 2}, {"type": "null"}]}, ["ab", "null"], ["abc"]),
    ({"type": ["string", "null"]}, ["ab", "null"], []),
    ({"$ref": "#/$defs/color"}, ["red"], ["blue"]),
    ({"$ref": "#/$defs/node"}, ['{"next": {}}'], ['{"next": 1}', "{"]),
    (INTEGER, ["5", "-1"], ["", "x", '"5"']),
    ({"type": ["integer", "null"]}, ["5", "null"], ["x"]),
    ({"type": "array", "items": STRING}, ['["a", "b"]'], ["a", "[1]"]),
    ({"enum": [1, None]}, ["1", "null"], ["2"]),
    ({"type": ["string", "integer"]}, [], []),
    ({"enum": ["1", 2]}, [], []),
    ({}, [], []),
    (STRING | {"enum": ["</function>"]}, [], []),
    (STRING | {"not": {"const": "x"}}, [], []),
]
"""Without values: the tool is called in JSON instead."""


@pytest.mark.parametrize(("schema", "valid", "invalid"), BARE, ids=lambda value: json.dumps(value)[:50])
def test_values_between_tags(
    marked_compiler: GrammarCompiler,
    marked_backend: Tokenizer,
    schema: dict[str, Any],
    valid: list[str],
    invalid: list[str],
) -> None:
    tool = GrammarTool(name="f", parameters=properties(a=schema) | DEFINITIONS)
    tool_format = dataclasses.replace(TOOL_FORMATS["qwen3_coder"], syntax_if_tagged_fails=None)
    options: dict[str, Any] = {"tool_format": tool_format, "tools": [tool]}
    if not valid:
        with pytest.raises(GrammarError, match="tool 'f': its parameter 'a' has"):
            accepts(marked_compiler, marked_backend, "", **options)
    for value in [*valid, *invalid]:
        text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
        assert accepts(marked_compiler, marked_backend, text, **options) is (value in valid), value


CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "Oslo"}}\n</tool_call>'
JSON_CALL = '[{"name": "get", "arguments": {"city": "Oslo"}}]'
CONTENT_SCHEMA = {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]}
PLACED: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    # format, options, texts, texts that are none
    ("hermes", {}, [CALL, f"{CALL}\n{CALL}"], ["", "Well.", f"Well. {CALL}", f"{CALL}\n{CALL}\n{CALL}", CALL[:-1]]),
    ("hermes", {"max_calls": 1}, [CALL], [f"{CALL}\n{CALL}"]),
    (
        "hermes",
        {"mode": "auto"},
        ["", "Well. {}", f"Well. {CALL}", f"{CALL} and {CALL}.", "a <tool"],
        ["<tool_call>", f"{CALL}{CALL}{CALL}", "Well. </tool_call>", CALL.replace("get", "gets")],
    ),
    (
        "hermes",
        {"mode": "auto", "content_schema": CONTENT_SCHEMA},
        [CALL, '{"name": 1}'],
        ["", "Well.", '{"name": "a"}'],
    ),
    ("json", {}, [JSON_CALL], ["", "[]", JSON_CALL[1:-1]]),
    ("json", {"mode": "auto"}, [JSON_CALL, "", " Well. [1]", "```python\nx\n```"], ["[1]", "\n {", "```json\n{}\n```"]),
    (
        "json",
        {"mode": "auto", "content_schema": CONTENT_SCHEMA},
        [JSON_CALL, '{"name": 1}'],
        ["", "[]", '{"name": "get"}'],
    ),
    ("llama3_json", {}, [JSON_CALL[1:-1].replace("arguments", "parameters")], [JSON_CALL]),
]


@pytest.mark.parametrize(("name", "options", "texts", "others"), PLACED)
def test_where_calls_stand(
    marked_compiler: GrammarCompiler,
    marked_backend: Tokenizer,
    name: str,
    options: dict[str, Any],
    texts: list[str],
    others: list[str],
) -> None:
    options = {"tool_format": TOOL_FORMATS[name], "tools": [GET]} | options
    for text in [*texts, *others]:
        assert accepts(marked_compiler, marked_backend, text, **options) is (text in texts), text


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ([], "0 tools"),
        ([GET] * 129, "offer fewer"),
        ([GrammarTool(name='a"b', parameters={})], "the name of tool"),
        ([GET, GrammarTool(name="f", parameters={"type": "string"})], "tool 'f': arguments are an object"),
        ([GET, GrammarTool(name="f", parameters={"not": {}})], "tool 'f': .*not"),
        ([GET, GrammarTool(name="f", parameters={"properties": {"a": {"type": "strin"}}})], "tool 'f': .*strin"),
        ([GET, GrammarTool(name="f", parameters={"minProperties": 2})], "tool 'f': minProperties"),
        ([GrammarTool(name="f", parameters={"enum": ["x" * (1 << 18)]})], "bytes"),
    ],
)
def test_refusals(marked_compiler: GrammarCompiler, tools: list[GrammarTool], reason: str) -> None:
    spec = build_tool_grammar(TOOL_FORMATS["hermes"], tools, mode="required", max_calls=1, special_token_ids={})
    with pytest.raises(GrammarError, match=reason):
        marked_compiler.compile(spec)


@pytest.mark.parametrize("parameters", [{"properties": []}, {"required": 1}, {"properties": {"a": {"anyOf": 1}}}])
def test_malformed_schemas(marked_compiler: GrammarCompiler, parameters: dict[str, Any]) -> None:
    tools = [GrammarTool(name="f", parameters=parameters)]
    spec = build_tool_grammar(TOOL_FORMATS["glm45"], tools, mode="required", max_calls=1, special_token_ids={})
    with pytest.raises(GrammarError, match="tool 'f'"):
        marked_compiler.compile(spec)


def test_added_tokens_that_are_not_special_are_text(marked_backend: Tokenizer) -> None:
    vocabulary = load_vocabulary(marked_backend, marked_backend.get_vocab_size(), (EOS_TOKEN_ID,))
    for token_id, token in marked_backend.get_added_tokens_decoder().items():
        assert vocabulary.is_special_token(token_id) is token.special
        assert vocabulary.decode_bytes([token_id]).decode().endswith(token.content)
        assert token.special or vocabulary.tokenize_str(f"a{token.content}b")[1:-1] == [token_id]


def test_arguments_have_no_properties_but_those_that_are_named() -> None:
    nested = {"type": "object", "properties": {"unit": {"type": "string"}}}
    parameters = {"properties": {"place": nested, "days": {"type": "array", "items": nested}}}
    closed = arguments_schema(parameters)
    assert closed["additionalProperties"] is False and closed["type"] == "object"
    assert closed["properties"]["place"]["additionalProperties"] is False
    assert closed["properties"]["days"]["items"]["additionalProperties"] is False
    assert "additionalProperties" not in parameters
    for opener in ({"additionalProperties": {"type": "string"}}, {"anyOf": [{"required": ["b"]}]}):
        assert arguments_schema({**parameters, **opener}).get("additionalProperties") is not False, opener
    assert arguments_schema({"properties": {}})["additionalProperties"] is False, "a function without arguments"
    assert arguments_schema({}) == {"type": "object"}, "one of which nothing is known"
