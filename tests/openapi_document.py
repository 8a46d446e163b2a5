"""/openapi.json as tests read it: answers may hold nothing but what is described, and every schema has a validator."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs

JsonObject = dict[str, Any]


def close_objects(document: JsonObject) -> JsonObject:
    """The document, changed in place: an object with named fields has no others. Clients must not rely on that, so the
    server does not promise it; but a field that is answered and not described is a gap."""
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return document


def validator(document: JsonObject, schema: JsonObject) -> jsonschema_rs.Draft202012Validator:
    """Validates against a schema that stands somewhere in the document."""
    return jsonschema_rs.Draft202012Validator(schema | {"components": document["components"]})


def events_validator(document: JsonObject, path: str) -> jsonschema_rs.Draft202012Validator:
    """Validates the payloads of a route's stream."""
    content = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
    data = content["schema"]["properties"]["data"]
    [json_data] = [data] if "contentSchema" in data else [part for part in data["anyOf"] if "contentSchema" in part]
    return validator(document, json_data["contentSchema"])


def answer_validator(document: JsonObject, path: str, status: int = 200) -> jsonschema_rs.Draft202012Validator:
    """Validates what a POST to a route is answered with."""
    content = document["paths"][path]["post"]["responses"][str(status)]["content"]["application/json"]
    return validator(document, content["schema"])


def references(node: Any) -> Iterator[str]:
    """Every $ref below a node."""
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)
