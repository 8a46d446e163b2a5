"""Strings that stand bare in a text, between tags, as terminals of a grammar. Pure; called by `tagged_arguments`."""

import re
from collections.abc import Collection
from typing import Any

from llguidance import regex_to_lark

from engined.errors import GrammarError
from engined.grammar.json_schema import to_enforceable
from engined.grammar.lark import literal, text_without

_ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]", re.DOTALL)
_INNERMOST_GROUP = re.compile(r"\([^()]*\)")


def raw_string(schema: dict[str, Any], excluded: Collection[str]) -> str:
    """The expression of a terminal for the strings of `schema`, which hold none of the texts `excluded`.

    `schema` has no keywords but the ones read here, and annotations. Formats are annotations too, except for those of
    dates and times. Raises GrammarError for what cannot be held to exactly.
    """
    if "enum" in schema or "const" in schema:
        return _choices(schema, excluded)
    enforceable = to_enforceable(schema)
    patterns = [enforceable.get("pattern"), *(part["pattern"] for part in enforceable.get("allOf", ()))]
    parts = [text_without(excluded), *(_pattern(pattern) for pattern in patterns if pattern is not None)]
    least, most = enforceable.get("minLength", 0), enforceable.get("maxLength")
    if least or most is not None:
        parts.append(_length(least, most))
    return " & ".join(parts)


def _choices(schema: dict[str, Any], excluded: Collection[str]) -> str:
    choices = schema["enum"] if "enum" in schema else [schema["const"]]
    if {"pattern", "minLength", "maxLength"} & schema.keys() or {"enum", "const"} <= schema.keys():
        raise GrammarError("an enum or const with further conditions")
    if not choices or any(text in choice for text in excluded for choice in choices):
        raise GrammarError("an enum or const with a text that is a tag of the model's")
    return " | ".join(literal(choice) for choice in choices)


def _length(least: Any, most: Any) -> str:
    if not isinstance(least, int) or not isinstance(most, int | None) or (most is not None and most < least):
        raise GrammarError("minLength and maxLength that no string has")
    return f"/(?s:.{{{least},{'' if most is None else most}}})/"


def _pattern(pattern: str) -> str:
    """A pattern is found anywhere in a string, unless it is anchored; anchors stand at its ends only."""
    is_begun, is_ended = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    inside = pattern[1 if is_begun else 0 : -1 if is_ended else None]
    outside_classes = _ESCAPE_OR_CLASS.sub(_assertion, inside)
    if any(sign in outside_classes for sign in "^$") or "(?" in outside_classes.replace("(?:", ""):
        raise GrammarError(f"the pattern {pattern!r}, with anchors or assertions inside")
    while outside_classes != (outer := _INNERMOST_GROUP.sub("", outside_classes)):
        outside_classes = outer
    if "|" in outside_classes and (is_begun or is_ended):
        raise GrammarError(f"the pattern {pattern!r}, whose anchors hold for one alternative only")
    before, after = "" if is_begun else "(?s:.*)", "" if is_ended else "(?s:.*)"
    return f"/{before}(?:{regex_to_lark(inside, 'dw')}){after}/"


def _assertion(match: re.Match[str]) -> str:
    return "$" if match[0] in (r"\b", r"\B") else ""
