"""Schemas of which llguidance alone lets invalid documents through: they are enforced, or refused with a reason."""

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from engined.errors import GrammarError
from engined.grammar.compiler import CompiledGrammar, GrammarCompiler
from engined.protocol.grammar import GrammarSpec
from tests.grammar.byte_tokens import accepts, random_text

INTEGER: dict[str, Any] = {"type": "integer"}
CLOSED = {"additionalProperties": False}
REQUIRED = {"required": ["a", "b"]}

ENFORCED: list[tuple[Any, str, str]] = [
    # schema, a text of it, a text that looks like one
    ({"properties": {"foo": INTEGER}}, '{"foo":1}', r'{"f\u006fo":"x"}'),
    ({"properties": {"aé": INTEGER}}, '{"aé":1}', r'{"a\u00e9":"x"}'),
    ({"properties": {"a\nb": INTEGER}}, r'{"a\nb":1}', r'{"a\u000ab":"x"}'),
    ({"properties": {"a\x01b": INTEGER}}, r'{"a\u0001b":1}', r'{"a\u0001b":"x"}'),
    ({"patternProperties": {"^foo$": INTEGER}}, '{"foo":1}', r'{"f\u006fo":"x"}'),
    ({"minProperties": 1, "properties": {"a": {}, "b": {}}} | CLOSED, '{"a":1}', "{}"),
    ({"minProperties": 2, "properties": {"a": {}}} | REQUIRED, '{"a":1,"b":1}', '{"a":1,"a":1}'),
    ({"type": "number", "exclusiveMaximum": 3}, "2.98", "2.99999999999999999"),
    ({"type": "number", "exclusiveMinimum": 0}, "0.01", "0.0"),
    ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, "2", "3"),
    ({"type": "number", "maximum": 0.9999999999999999}, "0.98", "0.99999999999999999"),
    ({"type": "integer", "maximum": 9223372036854775807}, "9223372036", "9223372036854775808"),
    ({"type": "integer", "maximum": 1700000000000}, "1700000000000", "1700000000001"),
    ({"format": "date"}, '"2024-02-29"', '"2023-02-29"'),
    ({"format": "date"}, '"2000-02-29"', '"1900-02-29"'),
    ({"format": "date", "pattern": "^20"}, '"2024-02-29"', '"1924-02-29"'),
    ({"format": "date-time"}, '"2024-02-29T23:59:59Z"', '"2024-02-29T23:58:60Z"'),
    ({"format": "time"}, '"23:59:59+01:00"', '"23:59:60+01:00"'),
    ({"type": "string", "pattern": r"^[^\x00-\x1f]*$"}, '"a"', r'"\n"'),
    ({"x-guidance": {"whitespace_pattern": ".*", "lenient": True}}, "1", "abc1"),
    ({"x-guidance": {"json_allowed_escapes": "u"}, "properties": {"a": INTEGER}}, '{"a":1}', r'{"\u0061":"x"}'),
    ({"type": "array", "items": {"properties": {"a": INTEGER}}}, '[{"a":1}]', r'[{"\u0061":"x"}]'),
    ({"$ref": "#/$defs/d", "$defs": {"d": {"format": "date"}}}, '"2024-02-29"', '"2023-02-29"'),
]

TAKEN: list[tuple[Any, str]] = [
    ({"type": "string", "format": "int32"}, '"x"'),
    ({"type": "array", "uniqueItems": False}, "[1,1]"),
    ({"type": "string", "maxLength": 2.0}, '"ab"'),
    ({"properties": {"format": INTEGER, "const": INTEGER, "multipleOf": INTEGER}}, '{"format":1,"const":2}'),
    ({"default": "\x01", "type": "integer"}, "1"),
    (True, '{"a":[1]}'),
]

REFUSED: list[tuple[Any, str]] = [
    ({"minProperties": 2}, "minProperties"),
    ({"const": "a\x00b"}, "const"),
    ({"enum": ["a", {"b": "\x7f"}]}, "enum"),
    ({"pattern": r"a\x01b"}, "control character"),
    ({"pattern": r"a[\x01]b"}, "control character"),
    ({"patternProperties": {r"a\vb": {}}}, "control character"),
    ({"pattern": "^[a[b]c]$"}, "in a class"),
    ({"pattern": "^[a-z&&x]$"}, "in a class"),
    ({"type": "number", "multipleOf": 0.01}, "multipleOf"),
    ({"x-guidance": {"lenient": True}, "not": INTEGER}, "not"),
    ({"x-guidance": {"coerce_one_of": True}, "oneOf": [INTEGER, {"type": "number"}]}, "oneOf"),
    ({"type": "string", "format": "json-pointer"}, "json-pointer"),
    ({"$ref": "#"}, "no text matches"),
    (False, "something matches"),
]


def compile_schema(compiler: GrammarCompiler, schema: Any) -> CompiledGrammar:
    """A grammar without whitespace."""
    return compiler.compile(GrammarSpec(kind="json_schema", value=json.dumps(schema), any_whitespace=False))


@pytest.mark.parametrize(("schema", "valid", "invalid"), ENFORCED, ids=lambda value: json.dumps(value)[:60])
def test_enforces_what_the_library_does_not(
    byte_compiler: GrammarCompiler, schema: Any, valid: str, invalid: str
) -> None:
    grammar = compile_schema(byte_compiler, schema)
    assert accepts(grammar, valid)
    assert not accepts(grammar, invalid)


@pytest.mark.parametrize(("schema", "text"), TAKEN, ids=lambda value: json.dumps(value)[:60])
def test_takes_what_changes_nothing(byte_compiler: GrammarCompiler, schema: Any, text: str) -> None:
    assert accepts(compile_schema(byte_compiler, schema), text)


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_refuses_what_cannot_be_enforced(byte_compiler: GrammarCompiler, schema: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        compile_schema(byte_compiler, schema)


def test_bounds_hold_next_to_them(byte_compiler: GrammarCompiler) -> None:
    draw = random.Random(7)
    num_accepted = 0
    for _ in range(60):
        bound = round(draw.uniform(-1, 1) * 10 ** draw.randint(0, 4), draw.randint(0, 16))
        keyword = draw.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
        schema = {"type": "number", keyword: bound}
        grammar = compile_schema(byte_compiler, schema)
        for text in neighbours(Decimal(repr(bound))):
            if accepts(grammar, text):
                num_accepted += 1
                jsonschema.validate(json.loads(text), schema)
    assert num_accepted > 500


def neighbours(bound: Decimal) -> set[str]:
    """Numbers around a bound, from afar to closer than a double can tell."""
    steps = [Decimal(digit).scaleb(-place) for place in range(0, 20, 2) for digit in (0, 1, 9, -1, -9)]
    return {format(bound + step, "f") for step in steps}


def test_whatever_is_let_to_end_validates(byte_compiler: GrammarCompiler) -> None:
    draw = random.Random(9)
    for schema, _, _ in ENFORCED:
        validator = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        grammar = compile_schema(byte_compiler, schema)
        for _ in range(10):
            text = random_text(grammar, draw)
            if text is not None:
                validator.validate(json.loads(text))
