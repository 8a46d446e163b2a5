"""Every field of the generating endpoints and how engined treats it: the one table behind the parser's refusals,
/openapi.json and the README. Computed from the declarations in `fields`, `chat` and `completions`. Pure.
"""

import typing
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.completions import CompletionRequest
from engined.frontend.api.support import Support, field_hints, nested_structs, note_of

Endpoint = str
"""The path of a route."""
GENERATING: dict[Endpoint, type[Struct]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldEntry:
    """One row of the table."""

    name: str
    """With its place: "temperature", "stream_options.include_usage", "messages[].content[].image_url"."""
    support: Support
    text: str
    """What it does; why it changes nothing; or what to do instead."""
    endpoints: tuple[Endpoint, ...]
    """The routes that know the field."""


def field_entries(struct_type: type[Struct], prefix: str = "") -> dict[str, tuple[Support, str]]:
    """Treatment and text of the fields of one body, those of nested objects with their path."""
    entries: dict[str, tuple[Support, str]] = {}
    for name, hint in field_hints(struct_type).items():
        note = note_of(hint)
        assert note is not None, f"{struct_type.__name__}.{name} has no note"
        entries[prefix + name] = (note.support, note.text)
        for nested in nested_structs(hint):
            entries |= field_entries(nested, f"{prefix}{name}{'[]' if _has_list(hint) else ''}.")
    return entries


def _has_list(hint: Any) -> bool:
    return typing.get_origin(hint) is list or any(map(_has_list, typing.get_args(hint)))


def _build_table() -> tuple[FieldEntry, ...]:
    by_endpoint = {endpoint: field_entries(struct_type) for endpoint, struct_type in GENERATING.items()}
    rows = {(name, *entry): None for entries in by_endpoint.values() for name, entry in entries.items()}
    return tuple(
        FieldEntry(
            name=name,
            support=support,
            text=text,
            endpoints=tuple(e for e, entries in by_endpoint.items() if entries.get(name) == (support, text)),
        )
        for name, support, text in rows
    )


FIELD_TABLE = _build_table()
"""All rows; a field that the two endpoints treat differently has one for each."""
