"""The types that the schema of a tool allows for one parameter. Frontend process; for formats that write strings bare,
where only the schema tells "5" from 5.
"""

from typing import Any

MAX_DEPTH = 16
"""How many references and alternatives deep a schema is followed; beyond, everything is allowed."""

_TYPE_OF_CLASS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def parameter_types(schema: Any, key: str) -> frozenset[str] | None:
    """The JSON types of parameter `key` under `schema`, that of all parameters. None: unknown. Never raises."""
    return _types(_parameter_schema(schema, key), schema, MAX_DEPTH, set()) or None


def has_parameter(schema: Any, key: str) -> bool:
    """Whether the schema names this parameter."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return isinstance(properties, dict) and key in properties


def type_of(value: Any) -> str:
    """The JSON type of a decoded value; whole numbers are "integer"."""
    return "null" if value is None else _TYPE_OF_CLASS[type(value)]


def _parameter_schema(schema: Any, key: str) -> Any:
    if has_parameter(schema, key):
        return schema["properties"][key]
    return schema.get("additionalProperties") if isinstance(schema, dict) else None


def _types(schema: Any, root: Any, depth: int, followed: set[str]) -> frozenset[str] | None:
    """`followed` are the references seen so far: one that comes again adds nothing, so the work is linear."""
    if not isinstance(schema, dict) or depth == 0:
        return None
    types = _own_types(schema)
    reference = schema.get("$ref")
    if types is None and isinstance(reference, str):
        if reference in followed:
            return frozenset()
        followed.add(reference)
        types = _types(_resolve(reference, root), root, depth - 1, followed)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if types is None and isinstance(schema.get(keyword), list):
            parts = [_types(part, root, depth - 1, followed) for part in schema[keyword]]
            known = [part for part in parts if part is not None]
            if known and (keyword == "allOf" or len(known) == len(parts)):
                types = frozenset().union(*known)
    if types is not None and schema.get("nullable") is True:
        types |= {"null"}
    return types


def _own_types(schema: dict[str, Any]) -> frozenset[str] | None:
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list) and declared and all(isinstance(name, str) for name in declared):
        return frozenset(declared)
    if "const" in schema:
        return frozenset({type_of(schema["const"])})
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return frozenset(map(type_of, schema["enum"]))
    if "properties" in schema:
        return frozenset({"object"})
    if "items" in schema:
        return frozenset({"array"})
    return None


def _resolve(reference: str, root: Any) -> Any:
    """The schema at a JSON pointer such as "#/$defs/city"; None where there is none."""
    if not reference.startswith("#"):
        return None
    target = root
    for step in reference.removeprefix("#").removeprefix("/").split("/") if reference != "#" else ():
        if not isinstance(target, dict):
            return None
        target = target.get(step.replace("~1", "/").replace("~0", "~"))
    return target
