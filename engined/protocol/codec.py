"""Dataclass messages to and from the JSON payload of a frame. Types are checked exactly when a message is read."""

from typing import Any, TypeVar

import msgspec
import orjson

from engined.errors import ProtocolError

T = TypeVar("T")


def encode(message: object) -> bytes:
    """Serialise a message dataclass (or plain JSON data) as one JSON document."""
    return orjson.dumps(message)


def decode(payload: bytes | bytearray | memoryview, message_type: type[T]) -> T:
    """Parse a payload into `message_type`.

    Raises ProtocolError if it is not JSON, or a field is missing or of the wrong type.
    """
    try:
        return msgspec.convert(orjson.loads(payload), message_type)
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"bad {message_type.__name__}: {error}") from error


def to_builtins(message: object) -> Any:
    """A message or config dataclass as plain dicts, lists and scalars."""
    return orjson.loads(orjson.dumps(message))
