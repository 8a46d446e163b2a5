"""JSON bodies into request structs; every fault becomes a RequestError that names the field. Frontend process.

The decoder checks types exactly while it reads, so hostile nesting, huge numbers and broken UTF-8 end here. It is the
only JSON parser that sees a body, so two fields of one name cannot mean different things to two readers: the last wins.
"""

import difflib
import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from engined.config.schema import UnknownFields
from engined.errors import RequestError
from engined.frontend.api.support import FieldNote, field_hints, nested_structs, note_of

T = TypeVar("T", bound=Struct)
MAX_ECHOED_NAME = 64
MAX_UNKNOWN_FIELDS = 64
MAX_DEPTH = 64
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_STEP = re.compile(r"(?P<name>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING_FIELD = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """What the decoder says: a sentence, and where."""

    text: str
    path: str

    @classmethod
    def parse(cls, message: str) -> "_Fault":
        match = _PATH.search(message)
        return cls(text=message, path="") if match is None else cls(text=message[: match.start()], path=match["path"])

    @property
    def unknown_field(self) -> str | None:
        match = _UNKNOWN_FIELD.match(self.text)
        return match["name"] if match is not None else None


class BodyParser(Generic[T]):
    """Reads the bodies of one endpoint. With `unknown_fields` "warn" those that nobody knows are left out and named."""

    def __init__(self, request_type: type[T], unknown_fields: UnknownFields = "error") -> None:
        self._request_type = request_type
        self._unknown_fields = unknown_fields
        self._decoder = msgspec.json.Decoder(request_type)
        self._refused = refused_fields(request_type)

    def parse(self, body: bytes) -> T:
        """Decode and check one body. Raises RequestError 400."""
        return self.parse_with_warnings(body)[0]

    def parse_with_warnings(self, body: bytes) -> tuple[T, list[str]]:
        """The same, and the paths of the unknown fields that were left out. Raises RequestError 400."""
        try:
            request, ignored = self._decode(body)
            check_refused(request, self._refused)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
        except RecursionError:
            raise RequestError("the body is nested too deeply", code="invalid_json") from None
        return request, ignored

    def convert(self, fields: dict[str, Any]) -> T:
        """The same for fields that are Python objects already, as an offline caller gives them. Raises RequestError."""
        try:
            request = msgspec.convert(fields, self._request_type)
        except msgspec.ValidationError as error:
            raise self._explain(_Fault.parse(str(error))) from None
        check_refused(request, self._refused)
        return request

    def _decode(self, body: bytes) -> tuple[T, list[str]]:
        ignored: list[str] = []
        while True:
            try:
                return self._decoder.decode(body), ignored
            except msgspec.ValidationError as error:
                fault = _Fault.parse(str(error))
            name = fault.unknown_field
            if name is None or self._unknown_fields == "error" or len(ignored) == MAX_UNKNOWN_FIELDS:
                raise self._explain(fault)
            body = _without(body, fault.path, name)
            ignored.append(_join(fault.path, name))

    def _explain(self, fault: _Fault) -> RequestError:
        path = fault.path
        if fault.unknown_field is not None:
            return self._explain_unknown(fault.unknown_field, path)
        if (match := _MISSING_FIELD.match(fault.text)) is not None:
            param = _join(path, match["name"])
            return RequestError(f"{param} is required", param=param, code="missing_required_parameter")
        if not path:
            return RequestError("the body must be a JSON object", code="invalid_type")
        return RequestError(f"{path}: {_soften(fault.text)}", param=path, code="invalid_type")

    def _explain_unknown(self, name: str, path: str) -> RequestError:
        known = [field for struct_type in self._structs_at(path) for field in struct_type.__struct_encode_fields__]
        param = _join(path, name[:MAX_ECHOED_NAME])
        nearest = difflib.get_close_matches(name[:MAX_ECHOED_NAME], known, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ": leave it out"
        return RequestError(f"{param} is not a known field{hint}", param=param, code="unknown_parameter")

    def _structs_at(self, path: str) -> list[type[Struct]]:
        structs: list[type[Struct]] = [self._request_type]
        for match in _STEP.finditer(path):
            if (name := match["name"]) is not None:
                hints = [field_hints(struct_type).get(name) for struct_type in structs]
                structs = [nested for hint in hints for nested in nested_structs(hint)]
        return structs


def refused_fields(struct_type: type[Struct]) -> dict[str, FieldNote]:
    """The fields of one struct that are refused whatever their type, with what is harmless in them."""
    hints = field_hints(struct_type)
    notes = {name: note for name, hint in hints.items() if (note := note_of(hint)) is not None}
    return {name: note for name, note in notes.items() if note.support == "refused"}


def check_refused(struct: Struct, refused: dict[str, FieldNote], where: str = "") -> None:
    """Raises RequestError for the first refused field that was sent, and was neither null nor harmless.

    `where` is the path of the struct. Fields that were decoded into a type of their own are left to their checks.
    """
    for name, note in refused.items():
        value = getattr(struct, name)
        if isinstance(value, Raw) and not _is_harmless(value, note):
            raise unsupported(_join(where, name), note.text)


def unsupported(param: str, remedy: str) -> RequestError:
    """The refusal of a field that engined knows but does not implement."""
    return RequestError(f"{param} is not supported: {remedy}", param=param, code="unsupported_parameter")


def _is_harmless(raw: Raw, note: FieldNote) -> bool:
    """Types count: true is not 1. What is too deep for this place of the stack is no harmless value either."""
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        return False
    return value is None or any(type(value) is type(good) and value == good for good in note.harmless)


def _without(body: bytes, path: str, name: str) -> bytes:
    """The body without one field. Keys keep their order, and of two of one name only the last was ever heeded."""
    data = msgspec.json.decode(body)
    _check_depth(data)
    target: Any = data
    for match in _STEP.finditer(path):
        target = target[match["name"]] if match["name"] is not None else target[int(match["index"])]
    del target[name]
    return msgspec.json.encode(data)


def _check_depth(data: object) -> None:
    """Raises RecursionError beyond MAX_DEPTH: what is left out is held to the limits of what is read."""
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    if level:
        raise RecursionError


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _soften(text: str) -> str:
    return (text[0].lower() + text[1:]).replace("`", "")
