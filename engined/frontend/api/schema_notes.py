"""What declarations of structs say beyond types, put into their JSON schemas: the class of a field, and the docstrings
under fields. Pure; called by `openapi`."""

import ast
import inspect
import sys
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from engined.frontend.api.support import field_hints, note_of

CLASS_KEY = "x-engined-class"

FieldDocs = dict[str, str]
"""Docstrings by field."""


def add_notes(struct_type: type[Struct], schema: dict[str, Any], docs: FieldDocs) -> None:
    """Mark the fields that have a class, and describe those that have a docstring and no description yet."""
    properties = schema.get("properties", {})
    for name, hint in field_hints(struct_type).items():
        if (note := note_of(hint)) is not None:
            properties[name][CLASS_KEY] = note.support
    for name, text in docs.items():
        properties[name].setdefault("description", text)
    for described in properties.values():
        # null means not given, so that null as a default says nothing.
        if described.get("default", ...) is None:
            del described["default"]


def read_field_docs(structs: Iterable[type[Struct]]) -> dict[type[Struct], FieldDocs]:
    """The docstrings under the fields of each struct, those of its bases included. Reads each source file once."""
    bases = {
        struct_type: [base for base in reversed(struct_type.__mro__) if issubclass(base, Struct) and base is not Struct]
        for struct_type in structs
    }
    modules = {base.__module__ for chain in bases.values() for base in chain}
    own = {(module, name): docs for module in modules for name, docs in _docs_of_module(module).items()}
    return {
        struct_type: {field: text for base in chain for field, text in own[base.__module__, base.__name__].items()}
        for struct_type, chain in bases.items()
    }


def _docs_of_module(module: str) -> dict[str, FieldDocs]:
    """Docstrings by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _docs_of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docs_of_class(definition: ast.ClassDef) -> FieldDocs:
    return {
        field.target.id: inspect.cleandoc(following.value.value)
        for field, following in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
        and isinstance(following.value.value, str)
    }
