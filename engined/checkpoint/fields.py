"""Typed access to the values of a model's config (JSON or GGUF metadata). Supervisor; called by the config readers.

Whatever is missing or of the wrong kind becomes a `CheckpointError` that names the file and the key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import orjson

from engined.errors import CheckpointError


class Fields:
    """The values of one config. A key that is absent and one that is null are the same: both take the default."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self.source = source
        self.values = values

    @classmethod
    def read(cls, path: Path, *, required: bool = False) -> "Fields":
        """The JSON object in `path`; empty if the file is absent and not required."""
        try:
            value = orjson.loads(path.read_bytes())
        except FileNotFoundError as error:
            if required:
                raise CheckpointError(f"{path}: missing; is this a Hugging Face model folder?") from error
            return cls(str(path), {})
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        except orjson.JSONDecodeError as error:
            raise CheckpointError(f"{path}: not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise CheckpointError(f"{path}: must hold a JSON object")
        return cls(str(path), value)

    def get(self, key: str) -> Any:
        """The value as it stands, or None."""
        return self.values.get(key)

    def size(self, key: str, default: int | None = None) -> int:
        """A positive count; an error when the key is absent and there is no default."""
        value = self.values.get(key)
        if value is None:
            value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._fail(key, value, "a positive integer")
        return int(value)

    def optional_size(self, key: str) -> int | None:
        """A positive count, or None when the key is absent."""
        return None if self.values.get(key) is None else self.size(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; an error when the key is absent and there is no default."""
        value = self.values.get(key)
        if value is None:
            value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            self._fail(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._fail(key, value, "true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            self._fail(key, value, "a token id or a list of token ids")
        return tuple(ids)

    def token_id(self, key: str) -> int | None:
        """The first token id of `token_ids`, or None."""
        return next(iter(self.token_ids(key)), None)

    def sizes(self, key: str) -> tuple[int, ...]:
        """A list of positive integers; empty when absent."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(
            isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in value
        ):
            self._fail(key, value, "a list of positive integers")
        return tuple(value)

    def table(self, key: str) -> "Fields | None":
        """A nested object, or None when absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._fail(key, value, "an object")
        return Fields(f"{self.source}: {key}", value)

    def _required(self, key: str, default: int | float | None) -> int | float:
        if default is None:
            raise CheckpointError(f"{self.source}: {key!r} is missing")
        return default

    def _fail(self, key: str, value: Any, expected: str) -> NoReturn:
        raise CheckpointError(f"{self.source}: {key!r} must be {expected}, but is {value!r:.100}")
