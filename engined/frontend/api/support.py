"""How engined treats each field of a body, said where the field is declared. Frontend process; see `field_table`.

    temperature: Annotated[float | None, honoured("0 is greedy.", minimum=0, maximum=2)] = None
    store: Annotated[bool | None, accepted("engined stores no answers.")] = None
    tools: Annotated[Unsupported, refused("leave it out", "none", "auto")] = UNSET

From these notes come the parser's refusals, /openapi.json (msgspec puts the note and the bounds into the schema), and
the README's table. The bounds are the documentation of checks in `serving`; a test holds the two together.
"""

import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, UnsetType

Support = Literal["honoured", "accepted", "refused"]
"""Honoured; taken because it changes nothing here; or a 400 that names the field and says what to do instead."""
Unsupported = Raw | UnsetType
"""Type of a field that is refused unless it is null or harmless, whatever else it holds. Its default is UNSET."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNote:
    """What a declaration says of its field."""

    support: Support
    text: str
    """What it does; why it changes nothing; or the remedy, a clause such as "leave it out"."""
    harmless: tuple[Any, ...] = ()
    """Values of a refused field that are taken, because they ask for what engined does anyway; null always is."""


def honoured(text: str, **schema: Any) -> Meta:
    """The field does what the API says. `schema`: the bounds, in the words of JSON Schema (`minimum`, `maxItems`)."""
    return Meta(description=text, extra_json_schema=schema, extra={"note": FieldNote(support="honoured", text=text)})


def accepted(text: str, **schema: Any) -> Meta:
    """The field is taken and changes nothing here; `text` says why."""
    note = FieldNote(support="accepted", text=text)
    return Meta(description=f"Changes nothing here: {text}", extra_json_schema=schema, extra={"note": note})


def refused(remedy: str, *harmless: Any) -> Meta:
    """The field is a 400 that says `remedy`, unless its value is null or one of `harmless`."""
    note = FieldNote(support="refused", text=remedy, harmless=harmless)
    schema = {"enum": [None, *harmless]}
    return Meta(description=f"Not supported: {remedy}.", extra_json_schema=schema, extra={"note": note})


def field_hints(struct_type: type[Struct]) -> dict[str, Any]:
    """Names and annotated types of the fields, those of base classes first."""
    hints = typing.get_type_hints(struct_type, include_extras=True)
    return {name: hints[name] for name in struct_type.__struct_encode_fields__}


def note_of(hint: Any) -> FieldNote | None:
    """The note in the annotated type of a field; None if its declaration has none."""
    if typing.get_origin(hint) is not Annotated:
        return None
    for annotation in typing.get_args(hint)[1:]:
        if isinstance(annotation, Meta) and annotation.extra is not None and "note" in annotation.extra:
            note = annotation.extra["note"]
            assert isinstance(note, FieldNote)
            return note
    return None


def nested_structs(hint: Any) -> list[type[Struct]]:
    """The structs that the value of a field may be made of, through unions, lists and annotations."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    return [struct_type for part in typing.get_args(hint) for struct_type in nested_structs(part)]
