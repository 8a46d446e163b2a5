"""Holds JSON schemas to what the library enforces exactly. Pure; runs wherever constraints are compiled.

A document that the grammar lets end must validate. Where llguidance would let an invalid one through, the schema is
rewritten to something as strict or stricter, or refused. tests/grammar/test_json_schema_suite.py shows each case.
"""

import re
from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from engined.errors import GrammarError

ALLOWED_ESCAPES = '"\\bfnrt'
"""Of the escapes of JSON strings. One spelling for each character: `"f\\u006fo"` would be a second property foo, which
the library takes for an additional one and does not hold to the schema of foo."""

_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NO_SCHEMAS = ("const", "enum", "default", "examples", "required")

_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}

_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
# The library's own dates know no leap years, and its times allow a leap second in every minute.
_FORMAT_PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
# Those of the specification; the library refuses the ones that it does not have. Others only annotate.
_FORMATS = frozenset(
    ("duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "idn-email", "idn-hostname", "iri")
    + ("iri-reference", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer", "regex")
)

_BOUND_DIGITS = 12
"""Bounds of more digits are not exact in the library's arithmetic."""
_MAX_EXACT_INTEGER = 2**53
_SMALLEST_STEP = Decimal("1e-9")

_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_ATOM = r"(?:\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\\]])"
_CLASS = re.compile(rf"\\.|\[(\^?(?:{_ATOM})*)\]", re.DOTALL)
_RANGE = re.compile(rf"{_ATOM}-{_ATOM}", re.DOTALL)
_CONTROL_ESCAPE = re.compile(r"\\(?:x(?:[01][0-9a-fA-F]|7[fF]|\{)|u(?:00[01][0-9a-fA-F]|007[fF]|\{)|[0acv])")


def to_enforceable(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that accepts nothing which `schema` does not, in terms that the library enforces exactly.

    Raises GrammarError for what cannot be put into such terms; what the library itself refuses is left to it.
    """
    result = {key: _convert(key, value) for key, value in schema.items() if not _is_without_effect(key, schema)}
    _check_literals(result)
    _check_min_properties(result)
    _check_multiple_of(result)
    _convert_patterns(result)
    _convert_bounds(result, "minimum", "exclusiveMinimum", ROUND_CEILING)
    _convert_bounds(result, "maximum", "exclusiveMaximum", ROUND_FLOOR)
    for key in _COUNTS & result.keys():
        result[key] = int(result[key]) if isinstance(result[key], float) and result[key].is_integer() else result[key]
    return result


def _is_without_effect(key: str, schema: dict[str, Any]) -> bool:
    """Whether a keyword changes nothing here, so that it need not be refused. ("x-guidance" is the library's own.)"""
    match key:
        case "x-guidance":
            return True
        case "uniqueItems":
            return schema[key] is False
        case "unevaluatedItems" | "unevaluatedProperties":
            return schema[key] is True
        case "if":
            return not {"then", "else"} & schema.keys()
        case "then" | "else":
            return "if" not in schema
        case "minContains" | "maxContains":
            return "contains" not in schema
        case _:
            return False


def _convert(key: str, value: Any) -> Any:
    if key in _NO_SCHEMAS:
        return value
    if isinstance(value, list):
        return [_convert("", item) for item in value]
    if not isinstance(value, dict):
        return value
    if key in _NAMED_SCHEMAS:
        return {name: _convert("", item) for name, item in value.items()}
    return to_enforceable(value)


def _check_literals(schema: dict[str, Any]) -> None:
    for key in ("const", "enum"):
        if any(_CONTROL.search(text) for text in _strings(schema.get(key))):
            raise GrammarError(f"{key} has a string with a control character, which is not supported")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _strings(item)


def _check_min_properties(schema: dict[str, Any]) -> None:
    """The library counts a name that comes twice as two properties."""
    least, required = schema.get("minProperties"), schema.get("required")
    num_required = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int) and least > max(1, num_required):
        raise GrammarError("minProperties is not supported above the number of required properties")


def _check_multiple_of(schema: dict[str, Any]) -> None:
    divisor = schema.get("multipleOf")
    if isinstance(divisor, float) and not divisor.is_integer():
        raise GrammarError("multipleOf is only supported for whole numbers: 0.07 / 0.01 is no integer to a validator")


def _convert_patterns(schema: dict[str, Any]) -> None:
    by_pattern = schema.get("patternProperties")
    for pattern in (schema.get("pattern"), *(by_pattern if isinstance(by_pattern, dict) else ())):
        if isinstance(pattern, str):
            _check_pattern(pattern)
    name = schema.get("format")
    if not isinstance(name, str):
        return
    if name not in _FORMATS:
        del schema["format"]
    if pattern := _FORMAT_PATTERNS.get(name):
        others = schema.get("allOf")
        schema["allOf"] = [*(others if isinstance(others, list) else ()), {"pattern": pattern}]


def _check_pattern(pattern: str) -> None:
    """The library drops single control characters from a pattern, and nests classes, as ECMA 262 does not."""
    for match in _CLASS.finditer(pattern):
        inside = re.sub(_ATOM, lambda atom: "." if atom[0].startswith("\\") else atom[0], match[1] or "")
        if any(operator in inside for operator in ("[", "&&", "--", "~~")):
            raise GrammarError(f"the pattern {pattern!r} has [, &&, -- or ~~ in a class: escape it with a backslash")
    atoms = _CLASS.sub(lambda match: _RANGE.sub("", match[0]) if match[1] else match[0], pattern)
    escapes = re.findall(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)\{?", atoms, re.DOTALL)
    if _CONTROL.search(pattern) or any(_CONTROL_ESCAPE.match(escape) for escape in escapes):
        raise GrammarError(f"the pattern {pattern!r} has a control character, which is not supported")


def _convert_bounds(schema: dict[str, Any], inclusive: str, exclusive: str, rounding: str) -> None:
    """Round a bound of many digits inward, and make an exclusive one inclusive.

    For validators compute with binary fractions: to them, 2.99999999999999999 is not less than 3.
    """
    bounds = []
    if (bound := _number(schema.get(inclusive))) is not None:
        bounds.append(_round(bound, rounding))
    if (bound := _number(schema.get(exclusive))) is not None:
        bounds.append(_step_inward(bound, rounding, is_integer=schema.get("type") == "integer"))
        del schema[exclusive]
    if bounds:
        bound = max(bounds) if rounding == ROUND_CEILING else min(bounds)
        schema[inclusive] = int(bound) if bound == int(bound) else float(bound)


def _round(bound: Decimal, rounding: str) -> Decimal:
    if bound == int(bound) and abs(bound) <= _MAX_EXACT_INTEGER:
        return bound
    return Context(prec=_BOUND_DIGITS, rounding=rounding).plus(bound)


def _step_inward(bound: Decimal, rounding: str, *, is_integer: bool) -> Decimal:
    step = max(_SMALLEST_STEP, abs(bound).scaleb(1 - _BOUND_DIGITS))
    if is_integer and bound == int(bound):
        step = Decimal(1)
    return _round(bound + step if rounding == ROUND_CEILING else bound - step, rounding)


def _number(value: Any) -> Decimal | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Decimal(repr(value)) if is_number and abs(value) < float("inf") else None
