"""The OpenAPI 3.1 document, made from the operations of all routes and from the structs that parse their bodies. Pure;
`routes.documentation` builds it once."""

import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from engined import __version__
from engined.frontend.api.operation import Operation, Parameter
from engined.frontend.api.schema_notes import add_notes, read_field_docs
from engined.frontend.api.support import field_hints, nested_structs

JsonObject = dict[str, Any]

DESCRIPTION = (
    "Fields of request bodies have a class, `x-engined-class`: honoured; accepted, which means that the field is taken "
    "and changes nothing here; or refused, which means that any value but those of its enum is answered with a 400 "
    "that names the remedy. A field that is not listed is a 400 as well. null always means not given."
)
EVENT_STREAM = "text/event-stream"
_COMPONENTS = "#/components/schemas/"
_OWN_PHRASES = {529: "Overloaded"}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def build_openapi(operations: Iterable[Operation]) -> JsonObject:
    """The whole document. Operations of one path share its entry."""
    operations = tuple(operations)
    schema_of, components = _schemas(type for operation in operations for type in _types(operation))
    for operation in operations:
        if operation.request_media_type == "multipart/form-data":
            _send_files_as_they_are(components[schema_of[operation.request]["$ref"].removeprefix(_COMPONENTS)])
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "engined", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in dict.fromkeys(operation.tag for operation in operations)],
        "security": [{}, {"bearer": []}, {"x_api_key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "Needed if engined has API keys."},
                "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
            },
        },
    }


def _schemas(types: Iterable[Any]) -> tuple[dict[Any, JsonObject], dict[str, JsonObject]]:
    """The schema of each type, and the named ones that these refer to."""
    types = list(dict.fromkeys(types))
    structs = _all_structs(types)
    schemas, components = msgspec.json.schema_components([*types, *structs], ref_template=f"{_COMPONENTS}{{name}}")
    docs = read_field_docs(structs)
    for struct_type, reference in zip(structs, schemas[len(types) :], strict=True):
        add_notes(struct_type, components[reference["$ref"].removeprefix(_COMPONENTS)], docs[struct_type])
    return dict(zip(types, schemas, strict=False)), components


def _all_structs(types: Iterable[Any]) -> list[type[Struct]]:
    """Every struct that a value of these types may hold, each once."""
    found: dict[type[Struct], None] = {}
    waiting = [struct_type for type in types for struct_type in nested_structs(type)]
    while waiting:
        struct_type = waiting.pop()
        if struct_type not in found:
            found[struct_type] = None
            waiting += [nested for hint in field_hints(struct_type).values() for nested in nested_structs(hint)]
    return list(found)


def _send_files_as_they_are(form: JsonObject) -> None:
    """Bytes are base64 in JSON, but not in the parts of a form."""
    for described in form["properties"].values():
        if described.pop("contentEncoding", None) is not None:
            described["contentMediaType"] = "application/octet-stream"


def _types(operation: Operation) -> Iterator[Any]:
    yield from (type for type in (operation.request, operation.response, operation.error) if type is not None)
    yield from operation.events
    yield from (parameter.type for parameter in _parameters(operation))


def _parameters(operation: Operation) -> list[Parameter]:
    """The declared ones, and a plain string for every placeholder of the path that was not declared."""
    declared = {parameter.name for parameter in operation.parameters}
    plain = [name for name in _PLACEHOLDER.findall(operation.path) if name not in declared]
    return [Parameter(name=name, where="path", description="") for name in plain] + list(operation.parameters)


def _operation(operation: Operation, schema_of: dict[Any, JsonObject]) -> JsonObject:
    described: JsonObject = {
        "operationId": f"{operation.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', operation.path).strip('_')}",
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation, schema_of),
    }
    if operation.description:
        described["description"] = operation.description
    if parameters := _parameters(operation):
        described["parameters"] = [_parameter(parameter, schema_of) for parameter in parameters]
    if operation.request is not None:
        content: JsonObject = {"schema": schema_of[operation.request]}
        if operation.example is not None:
            content["example"] = dict(operation.example)
        described["requestBody"] = {"required": True, "content": {operation.request_media_type: content}}
    return described


def _parameter(parameter: Parameter, schema_of: dict[Any, JsonObject]) -> JsonObject:
    described = {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "schema": schema_of[parameter.type],
    }
    return described | ({"description": parameter.description} if parameter.description else {})


def _responses(operation: Operation, schema_of: dict[Any, JsonObject]) -> JsonObject:
    schema = {"type": "string"} if operation.response is None else schema_of[operation.response]
    content: JsonObject = {operation.response_media_type: {"schema": schema}}
    if operation.events:
        content[EVENT_STREAM] = {
            "schema": _event([schema_of[event] for event in operation.events], operation.last_event)
        }
    error = {"application/json": {"schema": schema_of[operation.error]}}
    responses: JsonObject = {"200": {"description": HTTPStatus.OK.phrase, "content": content}}
    for status in sorted(set(operation.error_statuses)):
        responses[str(status)] = {
            "description": _OWN_PHRASES.get(status) or HTTPStatus(status).phrase,
            "content": error,
        }
    return responses


def _event(payloads: list[JsonObject], last_event: str | None) -> JsonObject:
    """One event: OpenAPI 3.1 has no other place for it than the schema of the stream."""
    json = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": payloads}}
    return {
        "type": "object",
        "description": "With stream: true. One server-sent event.",
        "properties": {
            "event": {"type": "string"},
            "data": json if last_event is None else {"anyOf": [{"const": last_event}, json]},
        },
        "required": ["data"],
    }
