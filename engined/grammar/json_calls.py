"""Calls that are JSON, beside content that is JSON: one schema, since nothing else tells which of them begins. Pure."""

import json
from typing import Any

from engined.errors import GrammarError
from engined.grammar.lark import json_value
from engined.protocol.tool_grammar import ToolCallGrammar

_NO_SCHEMAS = ("const", "enum", "default", "examples")


_OPENERS = frozenset(
    (
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "propertyNames",
        "minProperties",
        "not",
        "if",
    )
    + ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "dependentSchemas")
)
"""Beside these, a property that is not named may still be meant."""


def arguments_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema of arguments, which are an object in any case. Raises GrammarError if none matches."""
    kinds = parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise GrammarError(f"arguments are an object, but its parameters are of the type {kinds!r}")
    closed = _close(parameters | {"type": "object"})
    if parameters.get("properties") == {} and not parameters.get("required") and not _OPENERS & parameters.keys():
        # So frameworks describe functions without arguments.
        closed["additionalProperties"] = False
    return closed


def _close(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, whose objects have no properties but those that it names, if it names any.

    A schema that names its properties and says nothing of others means them, and small models go on inventing more.
    """
    closed = dict(schema)
    properties = schema.get("properties")
    if isinstance(properties, dict) and properties:
        closed["properties"] = {
            key: _close(value) if isinstance(value, dict) else value for key, value in properties.items()
        }
        required = schema.get("required")
        are_known = not isinstance(required, list) or all(name in properties for name in required)
        if are_known and not _OPENERS & schema.keys():
            closed["additionalProperties"] = False
    if isinstance(schema.get("items"), dict):
        closed["items"] = _close(schema["items"])
    return closed


def json_calls_or_content(grammar: ToolCallGrammar, content_schema: dict[str, Any], any_whitespace: bool) -> str:
    """The grammar in the library's language, if calls have no trigger. Raises GrammarError."""
    schemas = {f"tool_{index}": arguments_schema(tool.parameters) for index, tool in enumerate(grammar.tools)}
    schemas["content"] = content_schema
    calls = [_call(grammar, tool.name, f"#/$defs/tool_{index}") for index, tool in enumerate(grammar.tools)]
    schema: dict[str, Any] = {"anyOf": calls}
    if isinstance(_example(grammar, ""), list):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": grammar.max_calls}
    definitions = {name: _move(own, f"#/$defs/{name}") for name, own in schemas.items()}
    whole = {"$defs": definitions, "anyOf": [schema, {"$ref": "#/$defs/content"}]}
    return f"start: {json_value(whole, any_whitespace)}"


def _call(grammar: ToolCallGrammar, name: str, arguments: str) -> dict[str, Any]:
    example = _example(grammar, name)
    example = example[0] if isinstance(example, list) else example
    properties = {key: {"$ref": arguments} if value is None else {"const": value} for key, value in example.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _example(grammar: ToolCallGrammar, name: str) -> Any:
    """One call, with null for its arguments."""
    syntax = grammar.syntax
    parts = [*syntax.before_calls, *syntax.before_name, name, *syntax.before_arguments, "null"]
    parts += [*syntax.after_arguments, *syntax.after_calls]
    assert all(isinstance(part, str) for part in parts), "calls without a trigger are plain JSON"
    return json.loads("".join(map(str, parts)))


def _move(value: Any, place: str) -> Any:
    """A schema with its references as they are where it stands at `place` of a larger one."""
    if isinstance(value, list):
        return [_move(item, place) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: item if key in _NO_SCHEMAS else _move(item, place) for key, item in value.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved
