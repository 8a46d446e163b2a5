"""Reads the values of a GGUF header one by one, and never beyond the end of the file. Used by `checkpoint.gguf`."""

import struct
from pathlib import Path
from typing import Any, NoReturn

from engined.errors import CheckpointError

# Type ids of metadata values.
BOOL, STRING, ARRAY = 7, 8, 9
SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    BOOL: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
UINT32 = SCALARS[4]
UINT64 = SCALARS[10]


class Cursor:
    """A position in the file; every read checks that the bytes are there."""

    __slots__ = ("path", "data", "position")

    def __init__(self, path: Path, data: memoryview, position: int = 0) -> None:
        self.path = path
        self.data = data
        self.position = position

    def copy(self) -> "Cursor":
        """Another cursor at the same place."""
        return Cursor(self.path, self.data, self.position)

    def fail(self, problem: str) -> NoReturn:
        """Raise the CheckpointError that names the file and the problem."""
        raise CheckpointError(f"{self.path}: damaged GGUF file: {problem}")

    def require(self, num_bytes: int, what: str) -> None:
        """Fail unless `num_bytes` are left, which `what` needs."""
        remaining = len(self.data) - self.position
        if num_bytes > remaining:
            self.fail(
                f"{what} needs {num_bytes} bytes at offset {self.position}, but only {remaining} are left"
                " (is the download complete?)"
            )

    def scalar(self, layout: struct.Struct, what: str) -> Any:
        """Read one value of a fixed size."""
        self.require(layout.size, what)
        (value,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return value

    def scalars(self, element_type: int, length: int, what: str) -> list[Any]:
        """Read `length` values of a fixed size; `element_type` is a key of SCALARS."""
        layout = SCALARS[element_type]
        num_bytes = layout.size * length
        self.require(num_bytes, what)
        view = self.data[self.position : self.position + num_bytes]
        self.position += num_bytes
        return [value for (value,) in layout.iter_unpack(view)]

    def string(self, what: str, max_bytes: int | None = None) -> str:
        """Read a string: its length in bytes, then UTF-8."""
        length = self.scalar(UINT64, what)
        if max_bytes is not None and length > max_bytes:
            self.fail(f"{what} has {length} bytes; at most {max_bytes} are allowed")
        self.require(length, what)
        view = self.data[self.position : self.position + length]
        self.position += length
        try:
            return str(view, "utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8")

    def skip_strings(self, length: int, what: str) -> None:
        """Step over `length` strings. Written flat: this loop is most of the time that opening takes."""
        data, position, end = self.data, self.position, len(self.data)
        read_length = UINT64.unpack_from
        last_start = end - UINT64.size
        for _ in range(length):
            if position > last_start:
                break
            position += 8 + read_length(data, position)[0]
        else:
            if position <= end:
                self.position = position
                return
        self.fail(f"the strings of {what} reach beyond the end of the file")
