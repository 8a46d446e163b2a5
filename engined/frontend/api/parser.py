"""JSON bodies into request structs; every fault becomes a RequestError that names the field. Frontend process.

The decoder checks types exactly while it reads, so hostile nesting, huge numbers and broken UTF-8 end here.
"""

import difflib
import re
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from engined.errors import RequestError
from engined.frontend.api.chat import ChatMessage, ContentPart
from engined.frontend.api.fields import ResponseFormat, StreamOptions, UnsupportedFields, remedy

T = TypeVar("T", bound=UnsupportedFields)

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_MISSING_FIELD = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_NESTED: tuple[tuple[re.Pattern[str], type[Struct]], ...] = (
    (re.compile(r"messages\[\d+\]\.content\[\d+\]"), ContentPart),
    (re.compile(r"messages\[\d+\]"), ChatMessage),
    (re.compile(r"stream_options"), StreamOptions),
    (re.compile(r"response_format"), ResponseFormat),
)
MAX_ECHOED_NAME = 64
_HARMLESS = {"tool_choice": (b'"none"', b'"auto"'), "annotations": (b"[]",)}
"""Values that change nothing where there are no tools; clients echo them back."""


class BodyParser(Generic[T]):
    """Reads the bodies of one endpoint."""

    def __init__(self, request_type: type[T]) -> None:
        self._request_type = request_type
        self._decoder = msgspec.json.Decoder(request_type)
        self._unsupported = tuple(name for name, default in _defaults(request_type).items() if default is UNSET)

    def parse(self, body: bytes) -> T:
        """Decode and check one body. Raises RequestError 400."""
        try:
            request = self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise self._explain(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
        except RecursionError:
            raise RequestError("the body is nested too deeply", code="invalid_json") from None
        for name in self._unsupported:
            if is_given(getattr(request, name), harmless=_HARMLESS.get(name, ())):
                raise unsupported(name)
        return request

    def _explain(self, message: str) -> RequestError:
        path_match = _PATH.search(message)
        path = path_match["path"] if path_match is not None else ""
        text = message[: path_match.start()] if path_match is not None else message
        if (match := _UNKNOWN_FIELD.match(text)) is not None:
            return self._explain_unknown(match["name"], path)
        if (match := _MISSING_FIELD.match(text)) is not None:
            param = _join(path, match["name"])
            return RequestError(f"{param} is required", param=param, code="missing_required_parameter")
        if not path:
            return RequestError("the body must be a JSON object", code="invalid_type")
        return RequestError(f"{path}: {_soften(text)}", param=path, code="invalid_type")

    def _explain_unknown(self, name: str, path: str) -> RequestError:
        known = list(_defaults(self._type_at(path)))
        param = _join(path, name[:MAX_ECHOED_NAME])
        nearest = difflib.get_close_matches(name[:MAX_ECHOED_NAME], known, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ": leave it out"
        return RequestError(f"{param} is not a known field{hint}", param=param, code="unknown_parameter")

    def _type_at(self, path: str) -> type[Struct]:
        for pattern, struct_type in _NESTED:
            if pattern.fullmatch(path) is not None:
                return struct_type
        return self._request_type


def is_given(value: object, harmless: tuple[bytes, ...] = ()) -> bool:
    """Whether an unsupported field was sent, and was neither null nor one of the `harmless` values."""
    return isinstance(value, Raw) and bytes(value) not in (b"null", *harmless)


def unsupported(name: str) -> RequestError:
    """The refusal of a field that engined knows but does not implement."""
    field = name.rpartition(".")[2]
    return RequestError(f"{name} is not supported: {remedy(field)}", param=name, code="unsupported_parameter")


def _defaults(struct_type: type[Struct]) -> dict[str, object]:
    return {field.name: field.default for field in msgspec.structs.fields(struct_type)}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _soften(text: str) -> str:
    return (text[0].lower() + text[1:]).replace("`", "")
