"""From `response_format` and `structured_outputs` to the one constraint of a request. Frontend process; pure.

Whether the constraint can be kept is found out by compiling it: `rendering/grammar_checker`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from engined.errors import RequestError
from engined.frontend.api.constraints import (
    MAX_CHOICE_TEXTS,
    JsonSchemaFormat,
    ResponseFormat,
    StructuralTag,
    StructuredOutputs,
)
from engined.frontend.api.fields import GenerationFields
from engined.frontend.api.parser import check_refused, refused_fields
from engined.protocol.grammar import GrammarSpec

MAX_DEPTH = 64
"""Levels of a schema, braces and brackets counted."""
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_FORMAT_FIELDS = {"json_schema": ("json_schema",), "structural_tag": ("structures", "triggers")}
"""The fields of a response_format that belong to one type only."""
_REFUSED_IN_FORMAT = refused_fields(ResponseFormat)
_REFUSED_IN_OUTPUTS = refused_fields(StructuredOutputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What the answer must match, and the field that said so."""

    grammar: GrammarSpec
    param: str


def resolve_constraint(request: GenerationFields) -> Constraint | None:
    """The constraint of a request, not compiled yet; None if the answer is free. Raises RequestError."""
    by_format = None if request.response_format is None else _from_format(request.response_format)
    by_outputs = None if request.structured_outputs is None else _from_outputs(request.structured_outputs)
    if by_format is not None and by_outputs is not None:
        raise RequestError(
            "structured_outputs and response_format both constrain the answer: leave one of them out",
            param="structured_outputs",
        )
    return by_format or by_outputs


def _from_format(response_format: ResponseFormat) -> Constraint | None:
    check_refused(response_format, _REFUSED_IN_FORMAT, "response_format")
    for type_, names in _FORMAT_FIELDS.items():
        for name in names:
            if getattr(response_format, name) is not None and response_format.type != type_:
                raise RequestError(
                    f'response_format.{name} needs the type "{type_}", not "{response_format.type}"',
                    param=f"response_format.{name}",
                )
    match response_format.type:
        case "text":
            return None
        case "json_object":
            return Constraint(grammar=GrammarSpec(kind="json_object", value=""), param="response_format")
        case "json_schema":
            return _from_json_schema(response_format.json_schema)
        case "structural_tag":
            return _from_structures(response_format)


def _from_json_schema(json_schema: JsonSchemaFormat | None) -> Constraint:
    param = "response_format.json_schema"
    if json_schema is None:
        raise _missing(param, 'the type "json_schema" needs it')
    param = f"{param}.schema"
    if json_schema.schema is None:
        raise _missing(param, 'for any JSON object send {"type": "json_object"}')
    return _from_schema(json_schema.schema, param)


def _from_structures(response_format: ResponseFormat) -> Constraint:
    for name in _FORMAT_FIELDS["structural_tag"]:
        if getattr(response_format, name) is None:
            raise _missing(f"response_format.{name}", 'the type "structural_tag" needs it')
    tag = StructuralTag(structures=response_format.structures or [], triggers=response_format.triggers or [])
    return _from_tag(tag, "response_format")


def _from_outputs(outputs: StructuredOutputs) -> Constraint:
    check_refused(outputs, _REFUSED_IN_OUTPUTS, "structured_outputs")
    given = [name for name in KINDS if getattr(outputs, name) not in (None, *_off(name))]
    if len(given) != 1:
        found = "none" if not given else " and ".join(given)
        raise RequestError(
            f"structured_outputs must have exactly one of {', '.join(KINDS)}, and has {found}",
            param="structured_outputs",
        )
    [name] = given
    if outputs.disable_any_whitespace and name not in ("json", "json_object"):
        raise RequestError(
            f"structured_outputs.disable_any_whitespace concerns JSON, and not {name}: leave it out",
            param="structured_outputs.disable_any_whitespace",
        )
    param = f"structured_outputs.{name}"
    any_whitespace = not outputs.disable_any_whitespace
    match name:
        case "json":
            return _from_schema(_parse(outputs.json, param), param, any_whitespace=any_whitespace)
        case "json_object":
            spec = GrammarSpec(kind="json_object", value="", any_whitespace=any_whitespace)
        case "structural_tag":
            return _from_tag(_parse_tag(outputs.structural_tag, param), param)
        case "choice":
            spec = GrammarSpec(kind="choice", value=json.dumps(_check_choice(outputs.choice or [], param)))
        case "regex":
            spec = GrammarSpec(kind="regex", value=outputs.regex or "")
        case _:
            spec = GrammarSpec(kind="lark", value=outputs.grammar or "")
    return Constraint(grammar=spec, param=param)


def _off(name: str) -> tuple[bool, ...]:
    """json_object: false asks for nothing, whereas json: false is a schema."""
    return (False,) if name == "json_object" else ()


def _check_choice(choice: list[str], param: str) -> list[str]:
    if not 1 <= len(choice) <= MAX_CHOICE_TEXTS:
        raise RequestError(f"{param} must have 1 to {MAX_CHOICE_TEXTS} texts, not {len(choice)}", param=param)
    return choice


def _parse(value: Any, param: str) -> Any:
    """The object, if it came as its text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RequestError(f"{param} is not valid JSON: {error}", param=param) from None
    except RecursionError:
        raise _too_deep(param) from None


def _parse_tag(value: Any, param: str) -> StructuralTag:
    try:
        return msgspec.convert(_parse(value, param), StructuralTag)
    except msgspec.ValidationError as error:
        raise RequestError(
            f"{param} must have structures and triggers, as in response_format: {error}", param=param
        ) from None


def _from_tag(tag: StructuralTag, param: str) -> Constraint:
    value = {"structures": msgspec.to_builtins(tag.structures), "triggers": tag.triggers}
    return Constraint(grammar=GrammarSpec(kind="structural_tag", value=_dump(value, param)), param=param)


def _from_schema(schema: Any, param: str, *, any_whitespace: bool = True) -> Constraint:
    if not isinstance(schema, dict | bool):
        raise RequestError(f"{param} must be a JSON Schema: an object, or true or false", param=param)
    spec = GrammarSpec(kind="json_schema", value=_dump(schema, param), any_whitespace=any_whitespace)
    return Constraint(grammar=spec, param=param)


def check_depth(value: Any, param: str) -> None:
    """Raises RequestError for a JSON value of more than MAX_DEPTH levels."""
    if _is_deeper(value, MAX_DEPTH):
        raise _too_deep(param)


def _dump(value: Any, param: str) -> str:
    check_depth(value, param)
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:  # only what a Python caller gives can hold more than JSON does
        raise RequestError(f"{param} is not JSON: {error}", param=param) from None


def _is_deeper(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        level = [child for item in level for child in _children(item)]
    return bool(level)


def _children(item: object) -> Iterable[object]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _too_deep(param: str) -> RequestError:
    return RequestError(f"{param} is nested deeper than {MAX_DEPTH} levels: flatten it", param=param)


def _missing(param: str, remedy: str) -> RequestError:
    return RequestError(f"{param} is required: {remedy}", param=param, code="missing_required_parameter")
