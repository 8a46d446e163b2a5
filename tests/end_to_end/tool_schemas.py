"""40 JSON schemas: the parameters of tools that people wrote for `bfcl-eval`, and ten that use the other keywords."""

import json
from collections.abc import Iterator
from typing import Any

from tests.packages import Package, unpack

BFCL = Package(
    requirement="bfcl-eval==2026.3.23",
    sha256="3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    is_source=False,
)
_FILES = ("simple_python", "simple_java", "simple_javascript", "parallel_multiple", "live_simple", "live_multiple")
_PER_FILE = 5

# What the collection calls its types, of several programming languages.
_NAMES_OF_TYPES = {
    "object": ("dict", "HashMap", "Hashtable"),
    "array": ("tuple", "list", "Array", "ArrayList"),
    "number": ("float", "double"),
    "integer": ("long", "Bigint"),
    "boolean": ("Boolean",),
    "string": ("String", "char"),
}
_TYPES = {name: kind for kind, names in _NAMES_OF_TYPES.items() for name in names}

OWN: dict[str, dict[str, Any]] = {
    "matrix": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        "maxItems": 3,
    },
    "tagged union": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 0}}}
            | {"required": ["kind", "radius"], "additionalProperties": False},
            {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "integer"}}}
            | {"required": ["kind", "side"], "additionalProperties": False},
        ]
    },
    "recursive": {
        "$defs": {"node": {"type": "object", "properties": {"value": {"enum": [1, 2]}, "next": {"$ref": "#/$defs/n"}}}}
        | {"n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "$ref": "#/$defs/node",
    },
    "formats": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "date-time"},
            "id": {"type": "string", "format": "uuid"},
            "mail": {"type": "string", "format": "email", "maxLength": 24},
            "host": {"type": "string", "format": "ipv4"},
        },
        "required": ["day", "at", "id", "host"],
        "additionalProperties": False,
    },
    "pattern": {"type": "string", "pattern": r"^[A-Z]{2}\d{4}(-[a-z]{3,5})?$"},
    "bounds": {
        "type": "object",
        "properties": {
            "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "percent": {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5},
            "name": {"type": "string", "minLength": 2, "maxLength": 8},
        },
        "required": ["share", "percent", "name"],
        "additionalProperties": False,
    },
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x-[a-z]{1,3}$": {"type": "integer"}},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 6}, {"type": "boolean"}, {"enum": ["ä", "\n", 1.5, None]}],
        "items": False,
        "minItems": 3,
    },
    "merged": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 9}, "b": {"type": ["boolean", "null"]}}, "maxProperties": 2},
        ],
        "required": ["b"],
    },
    "open": {"type": "object", "properties": {"a/b": {"type": "integer"}, "é": {"type": "boolean"}}, "required": ["é"]},
}


def load_schemas() -> dict[str, dict[str, Any]]:
    """By name. Every other tool is closed and needs all of its parameters, as OpenAI's strict tools do."""
    tools: dict[str, dict[str, Any]] = {}
    for file in _FILES:
        spread = [parameters for _, parameters in zip(range(_PER_FILE), _varied_tools(file), strict=False)]
        for name, parameters in spread:
            is_strict = len(tools) % 2 == 0
            tools[f"{file}: {name}"] = to_json_schema(parameters, is_strict=is_strict)
    return tools | OWN


def _varied_tools(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those with nested types, lists of values or many parameters, and of each name and shape only one."""
    seen = set()
    for line in (unpack(BFCL, "/data/BFCL_v4") / f"bfcl_eval/data/BFCL_v4_{file}.json").read_text().splitlines():
        for tool in json.loads(line)["function"]:
            parameters = tool["parameters"]
            shape = json.dumps([sorted(kind.items()) for kind in _kinds(parameters)])
            if tool["name"] not in seen and shape not in seen and any(word in shape for word in ("items", "enum")):
                seen |= {tool["name"], shape}
                yield tool["name"], parameters


def _kinds(parameters: dict[str, Any]) -> list[dict[str, str]]:
    return [{key: str(value["type"]) for key in value} for value in parameters["properties"].values()]


def to_json_schema(parameters: dict[str, Any], *, is_strict: bool) -> dict[str, Any]:
    """What a tool's parameters are in JSON Schema."""
    schema = {key: value for key, value in parameters.items() if key in ("description", "enum", "required")}
    kind = parameters.get("type", "")
    if kind and kind != "any":
        schema["type"] = _TYPES.get(kind, kind)
    if "items" in parameters:
        schema["items"] = to_json_schema(parameters["items"], is_strict=is_strict)
    if "properties" in parameters:
        properties = parameters["properties"]
        schema["properties"] = {name: to_json_schema(item, is_strict=is_strict) for name, item in properties.items()}
        if is_strict:
            schema |= {"required": list(properties), "additionalProperties": False}
    return schema
