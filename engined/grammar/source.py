"""From a constraint as the client sent it to a grammar in the library's language. Pure; used by the compiler."""

import json
import re
from typing import Any

import msgspec
from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import gbnf_to_lark

from engined.errors import GrammarError
from engined.grammar.json_schema import to_enforceable
from engined.grammar.lark import json_options, literal
from engined.grammar.limits import (
    MAX_JSON_DEPTH,
    MAX_LARK_BYTES,
    MAX_PATTERN_BYTES,
    MAX_SOURCE_BYTES,
)
from engined.grammar.tool_calls import name_tool, tool_calls_to_lark
from engined.protocol.grammar import GrammarSpec
from engined.protocol.tool_grammar import ToolCallGrammar

_LARK = re.compile(r"^[ \t]*(%llguidance\b|start[ \t]*:)", re.MULTILINE)
"""What no GBNF grammar has. The library's own test takes seconds for a few thousand empty lines."""
_MAX_BYTES = {"regex": MAX_PATTERN_BYTES, "lark": MAX_LARK_BYTES, "structural_tag": MAX_LARK_BYTES}


def to_source(spec: GrammarSpec) -> str:
    """The grammar of `spec`, not compiled yet. Raises GrammarError for one that is too large or malformed."""
    num_bytes, most = len(spec.value.encode(errors="surrogatepass")), _MAX_BYTES.get(spec.kind, MAX_SOURCE_BYTES)
    if num_bytes > most:
        raise GrammarError(f"it has {num_bytes} bytes, but at most {most} are compiled: make it smaller")
    try:
        return _convert(spec)
    except ValueError as error:  # NaN, or half of a surrogate pair
        raise GrammarError(f"it holds what cannot be compiled: {error}") from None


def name_place(spec: GrammarSpec, source: str, reason: str) -> str:
    """The reason why `source`, the grammar of `spec`, does not compile, in terms of what the client sent."""
    return name_tool(source, reason) if spec.kind == "tool_calls" else reason


def _convert(spec: GrammarSpec) -> str:
    match spec.kind:
        case "json_schema":
            return _from_schema(_parse(spec.value), spec.any_whitespace)
        case "json_object":
            return _from_schema({"type": "object"}, spec.any_whitespace)
        case "regex":
            return LLMatcher.grammar_from_regex(spec.value)
        case "choice":
            return _from_choices(_parse(spec.value))
        case "lark":
            return _from_lark(spec.value)
        case "structural_tag":
            return _from_structural_tag(_parse(spec.value), spec.any_whitespace)
        case "tool_calls":
            return _from_tool_calls(_parse(spec.value), spec.any_whitespace)


def _parse(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is not JSON: {error}") from None
    _check_json(value)
    return value


def _check_json(value: Any) -> None:
    """Bound the depth of a document, and the bytes of all patterns in it."""
    level, depth, num_pattern_bytes = [value], 0, 0
    while level:
        depth += 1
        if depth > MAX_JSON_DEPTH:
            raise GrammarError(f"it is nested deeper than {MAX_JSON_DEPTH} levels")
        num_pattern_bytes += sum(_num_pattern_bytes(item) for item in level if isinstance(item, dict))
        level = [child for item in level for child in _children(item)]
    if num_pattern_bytes > MAX_PATTERN_BYTES:
        raise GrammarError(f"its patterns have {num_pattern_bytes} bytes, but at most {MAX_PATTERN_BYTES} are compiled")


def _children(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return list(item.values())
    return item if isinstance(item, list) else []


def _num_pattern_bytes(item: dict[str, Any]) -> int:
    patterns = [item.get("pattern")]
    by_pattern = item.get("patternProperties")
    if isinstance(by_pattern, dict):
        patterns += by_pattern
    return sum(len(pattern.encode(errors="surrogatepass")) for pattern in patterns if isinstance(pattern, str))


def _from_schema(schema: Any, any_whitespace: bool) -> str:
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError("a JSON schema that something matches is an object, or true")
    text = json.dumps(to_enforceable(schema))
    return LLMatcher.grammar_from_json_schema(text, overrides=json_options(any_whitespace))


def _from_choices(choices: Any) -> str:
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("choices are a list of one string or more")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(literal(choice) for choice in choices))


def _from_lark(text: str) -> str:
    """A grammar in Lark's notation, or in that of llama.cpp (GBNF), whose rules have another sign."""
    if "::=" in text and not _LARK.search(text):
        try:
            text = gbnf_to_lark(text)
        except Exception as error:  # the converter raises bare Exception
            raise GrammarError(f"it is neither a Lark nor a GBNF grammar: {error}") from None
    return LLMatcher.grammar_from_lark(text)


def _from_structural_tag(tag: Any, any_whitespace: bool) -> str:
    """Free text, in which each trigger begins one of the structures: its `begin`, JSON by its `schema`, its `end`."""
    structures = tag.get("structures") if isinstance(tag, dict) else None
    triggers = tag.get("triggers") if isinstance(tag, dict) else None
    if not isinstance(structures, list) or not structures or not isinstance(triggers, list) or not triggers:
        raise GrammarError('a structural tag is an object with the lists "structures" and "triggers"')
    tags = [_structure(structure, triggers, any_whitespace) for structure in structures]
    # Special tokens have no text, so a trigger that looks like one is taken as text.
    return StructTag.to_grammar(tags, assume_special=False)


def _structure(structure: Any, triggers: list[Any], any_whitespace: bool) -> StructTag:
    if not isinstance(structure, dict):
        raise GrammarError('each of "structures" is an object with "begin", "schema" and "end"')
    begin, end, schema = structure.get("begin"), structure.get("end"), structure.get("schema", {})
    if not isinstance(begin, str) or not isinstance(end, str) or not isinstance(schema, dict):
        raise GrammarError('each of "structures" has the strings "begin" and "end", and an object "schema"')
    trigger = next((text for text in triggers if isinstance(text, str) and text and begin.startswith(text)), None)
    if trigger is None:
        raise GrammarError(f'none of "triggers" is the beginning of {begin!r}')
    bounded = to_enforceable(schema) | {"x-guidance": json_options(any_whitespace)}
    return StructTag(trigger=trigger, begin=begin, grammar=bounded, end=end)


def _from_tool_calls(value: Any, any_whitespace: bool) -> str:
    return LLMatcher.grammar_from_lark(tool_calls_to_lark(msgspec.convert(value, ToolCallGrammar), any_whitespace))
