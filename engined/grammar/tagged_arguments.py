"""The arguments of a call one by one between tags, as a part of a grammar. Pure; called by `tool_calls`.

A string stands there as it is, so that only the schema tells the parser "5" from 5. A schema is taken here if whatever
the parser makes of a text that the grammar lets through must validate; others are refused.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from engined.errors import GrammarError
from engined.grammar.lark import Terminals, join, json_value, literal
from engined.grammar.raw_strings import raw_string
from engined.protocol.tool_grammar import TaggedPieces

_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_ANNOTATIONS |= {"$comment", "$schema", "$id", "$defs", "definitions"}
_OF_OBJECT = {"type", "properties", "required", "additionalProperties"} | _ANNOTATIONS
_OF_STRING = {"type", "enum", "const", "pattern", "minLength", "maxLength", "format"} | _ANNOTATIONS
_OF_REFERENCE = {"$ref"} | _ANNOTATIONS
_OF_UNION = {"anyOf", "oneOf"} | _ANNOTATIONS
_KEY = re.compile(r"[^\s<>\"'=](?:[^\n<>\"'=]*[^\s<>\"'=])?")
_DEFINITION = re.compile(r"#/(\$defs|definitions)/([^/~%]+)")
_MAX_DEPTH = 16
_TYPES: dict[type, str] = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}
_TYPES |= {list: "array", dict: "object"}
Value = TypeVar("Value", dict[str, Any], list[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedArguments:
    """How arguments are written, and what they cannot hold."""

    pieces: TaggedPieces
    markers: Collection[str]
    """Texts that the parser looks for: no string may hold one."""
    any_whitespace: bool
    terminals: Terminals

    def rule(self, schema: dict[str, Any]) -> str:
        """The arguments by the schema of an object, in its order, as a part of a rule.

        Raises GrammarError with the reason if they cannot be written so that they always validate.
        """
        _refuse_other_keywords(schema, _OF_OBJECT)
        properties, required = _checked(schema, "properties", dict), _checked(schema, "required", list)
        if missing := [name for name in required if name not in properties]:
            raise GrammarError(f"its parameters require {missing[0]!r}, which is none of their properties")
        members = []
        for key, member in properties.items():
            try:
                text = join(self._key(key), self._value(member, schema))
            except GrammarError as error:
                raise GrammarError(f"its parameter {key!r} has {error}") from None
            members.append(text if key in required else f"({text})?")
        return join(*members)

    def _key(self, key: str) -> str:
        if not _KEY.fullmatch(key) or any(marker in key for marker in self.markers):
            raise GrammarError("a name that cannot stand between tags")
        return join([*self.pieces.before_key, key, *self.pieces.after_key])

    def _value(self, schema: Any, root: dict[str, Any]) -> str:
        if not isinstance(schema, dict):
            raise GrammarError("no schema that is an object")
        types = _types(schema, root, _MAX_DEPTH)
        if "string" not in types:
            return join(json_value(_document(schema, root), self.any_whitespace), self.pieces.after_value)
        # One terminal with the closing tag, for a longer value would otherwise swallow its beginning.
        end, *rest = self.pieces.after_value
        tags = [text.strip() for text in (end,) if isinstance(text, str)]
        value = _nullable_string(schema, root, [*self.markers, *tags])
        if isinstance(end, str):
            return join(self.terminals.add(f"({value}) {literal(end)}", is_lazy=True), rest)
        return join(self.terminals.add(value, is_lazy=False), self.pieces.after_value)


def _nullable_string(schema: dict[str, Any], root: dict[str, Any], excluded: Collection[str]) -> str:
    """The expression of a terminal for a string, or the word null."""
    schema = _resolve(schema, root)
    branches = [_resolve(branch, root) for key in ("anyOf", "oneOf") for branch in _checked(schema, key, list)]
    if not branches:
        _refuse_other_keywords(schema, _OF_STRING)
        return _string(schema, excluded)
    _refuse_other_keywords(schema, _OF_UNION)
    strings = [branch for branch in branches if branch.get("type") != "null"]
    if len(strings) != 1 or len(branches) != 2:
        raise GrammarError("a type that is a union with string")
    _refuse_other_keywords(strings[0], _OF_STRING)
    return f'({_string(strings[0], excluded)}) | "null"'


def _string(schema: dict[str, Any], excluded: Collection[str]) -> str:
    types = _types(schema, {}, 0)
    if not all(isinstance(value, str) for value in _values(schema)):
        raise GrammarError("an enum or const of strings and others")
    if types == {"string", "null"} and not _values(schema):
        return f'({raw_string(schema | {"type": "string"}, excluded)}) | "null"'
    if types != {"string"}:
        raise GrammarError("a type that is a union with string")
    return raw_string(schema, excluded)


def _values(schema: dict[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else _checked(schema, "enum", list)


def _types(schema: Any, root: dict[str, Any], depth: int) -> set[str]:
    """The JSON types of what matches a schema. Raises GrammarError if they cannot be told."""
    schema = _resolve(schema, root) if isinstance(schema, dict) else {}
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and all(isinstance(kind, str) for kind in kinds):
        return set(kinds)
    if values := _values(schema):
        return {_TYPES[type(value)] for value in values}
    for key in ("anyOf", "oneOf"):
        if depth and (branches := _checked(schema, key, list)):
            return {kind for branch in branches for kind in _types(branch, root, depth - 1)}
    raise GrammarError("a type that cannot be told from its schema")


def _resolve(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """The definition that a schema stands for. What else it says beside the reference must be without effect."""
    for _ in range(_MAX_DEPTH):
        if "$ref" not in schema:
            return schema
        _refuse_other_keywords(schema, _OF_REFERENCE)
        found = _DEFINITION.fullmatch(str(schema["$ref"]))
        target = _checked(root, found[1], dict).get(found[2]) if found else None
        if not isinstance(target, dict):
            break
        schema = target
    raise GrammarError(f"the reference {schema['$ref']!r}, which is not to one of $defs")


def _document(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema as one by itself."""
    if references := [text for text in _references(schema) if not _DEFINITION.match(text)]:
        raise GrammarError(f"the reference {references[0]!r}, which is not to one of $defs")
    return schema | {key: root[key] for key in ("$defs", "definitions") if key in root}


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for item in value for text in _references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [text for item in value.values() for text in _references(item)]


def _checked(schema: dict[str, Any], key: str, kind: type[Value]) -> Value:
    """The value of a keyword, empty if it is not there."""
    value = schema.get(key, kind())
    if not isinstance(value, kind):
        raise GrammarError(f"a value of {key!r} that no schema has")
    return value


def _refuse_other_keywords(schema: dict[str, Any], known: set[str]) -> None:
    if unknown := schema.keys() - known:
        raise GrammarError(f"the keyword {min(unknown)!r}")
