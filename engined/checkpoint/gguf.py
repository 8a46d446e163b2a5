"""Header of a GGUF file: metadata and where each tensor lies. Any process; no torch, no numpy.

The supervisor reads the model's shape from it, the frontend the tokenizer, the workers the weights. The file is mapped,
not read: opening walks the header once (tens of milliseconds for a vocabulary of 150 000), and arrays are decoded only
when somebody looks into them. Every count and length in the file is checked against what is left of the file before it
is used, so that a damaged or hostile file ends in a `CheckpointError`, never in an allocation of its choosing.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

from engined.checkpoint.ggml_types import GGML_TYPES
from engined.checkpoint.gguf_cursor import ARRAY, SCALARS, STRING, UINT32, UINT64, Cursor
from engined.errors import CheckpointError, ModelNotFoundError

MAX_NAME_BYTES = 65535
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies. `shape` is rows first, as in torch: (out_features, in_features)."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    """Name of the ggml type, for example "Q4_1"; `ggml_types.GGML_TYPES` has its block size."""
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class GgufArray(Sequence[Any]):
    """An array of the metadata. It knows its length at once and decodes its elements on first access."""

    def __init__(self, cursor: Cursor, key: str, element_type: int, length: int) -> None:
        self._cursor = cursor
        self._key = key
        self._element_type = element_type
        self._length = length
        self._elements: list[Any] | None = None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._decoded())

    def __repr__(self) -> str:
        return f"<GgufArray {self._key}: {self._length} elements>"

    def _decoded(self) -> list[Any]:
        if self._elements is None:
            cursor = self._cursor.copy()
            if self._element_type == STRING:
                self._elements = [cursor.string(self._key) for _ in range(self._length)]
            else:
                self._elements = cursor.scalars(self._element_type, self._length, self._key)
        return self._elements


class GgufFile:
    """One open GGUF file. `metadata` maps keys to Python values; its arrays are lazy sequences.

    The mapping of the file lives as long as this object or a view that `raw` handed out.
    """

    def __init__(self, path: Path, data: memoryview) -> None:
        """Parse the header in `data`, the whole file. Use `open`, which maps the file."""
        self.path = path
        self._data = data
        cursor = Cursor(path, data)
        num_tensors, num_entries = _read_preamble(cursor)
        self.metadata: Mapping[str, Any] = MappingProxyType(_read_metadata(cursor, num_entries))
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(
            _read_tensor_table(cursor, num_tensors, self._alignment(cursor))
        )

    @classmethod
    def open(cls, path: str | Path) -> "GgufFile":
        """Map `path` and read its header. Raises ModelNotFoundError or CheckpointError, naming the file."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size == 0:
                    raise CheckpointError(f"{path}: the file is empty, not a GGUF model")
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError as error:
            raise ModelNotFoundError(f"{path}: no such file") from error
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        return cls(path, data)

    def raw(self, name: str) -> memoryview:
        """The bytes of tensor `name`, a read-only view of the mapped file; KeyError if there is none."""
        tensor = self.tensors[name]
        return self._data[tensor.offset : tensor.offset + tensor.num_bytes]

    def _alignment(self, cursor: Cursor) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            cursor.fail(f"general.alignment is {alignment!r}; it must be a power of two")
        return alignment


def _read_preamble(cursor: Cursor) -> tuple[int, int]:
    """Check magic and version; return the number of tensors and of metadata entries."""
    cursor.require(24, "the file header")
    if bytes(cursor.data[:4]) != b"GGUF":
        raise CheckpointError(f"{cursor.path}: not a GGUF file (it does not begin with 'GGUF')")
    cursor.position = 4
    version = cursor.scalar(UINT32, "the version")
    if version not in (2, 3):
        raise CheckpointError(f"{cursor.path}: GGUF version {version} is not supported (2 and 3, little endian, are)")
    return cursor.scalar(UINT64, "the tensor count"), cursor.scalar(UINT64, "the metadata count")


def _read_metadata(cursor: Cursor, num_entries: int) -> dict[str, Any]:
    # The smallest entry has an empty key, a type and one byte of value.
    cursor.require(num_entries * 13, f"a table of {num_entries} metadata entries")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = cursor.string("a metadata key", MAX_NAME_BYTES)
        if key in metadata:
            cursor.fail(f"metadata key {key!r} occurs twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_value(cursor: Cursor, key: str) -> Any:
    value_type = cursor.scalar(UINT32, key)
    if value_type == STRING:
        return cursor.string(key)
    if value_type == ARRAY:
        return _read_array(cursor, key)
    if value_type not in SCALARS:
        cursor.fail(f"metadata key {key!r} has unknown type {value_type}")
    return cursor.scalar(SCALARS[value_type], key)


def _read_array(cursor: Cursor, key: str) -> GgufArray:
    """Note where the array lies and step over it."""
    element_type = cursor.scalar(UINT32, key)
    length = cursor.scalar(UINT64, key)
    if element_type == ARRAY:
        cursor.fail(f"metadata key {key!r} is an array of arrays")
    if element_type != STRING and element_type not in SCALARS:
        cursor.fail(f"metadata key {key!r} is an array of unknown type {element_type}")
    element_bytes = 8 if element_type == STRING else SCALARS[element_type].size
    cursor.require(length * element_bytes, f"{key!r}, an array of {length} elements,")
    array = GgufArray(cursor.copy(), key, element_type, length)
    if element_type == STRING:
        cursor.skip_strings(length, key)
    else:
        cursor.position += length * element_bytes
    return array


def _read_tensor_table(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, GgufTensor]:
    # The smallest row has an empty name, no dimension, a type and an offset.
    cursor.require(num_tensors * 24, f"a table of {num_tensors} tensors")
    rows = [_read_tensor_row(cursor) for _ in range(num_tensors)]
    data_start = (cursor.position + alignment - 1) // alignment * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, type_id, relative_offset in rows:
        if name in tensors:
            cursor.fail(f"tensor {name!r} occurs twice")
        if relative_offset % alignment:
            cursor.fail(f"tensor {name!r} lies at {relative_offset}, not a multiple of {alignment}")
        tensors[name] = _locate_tensor(cursor, name, shape, type_id, data_start + relative_offset)
    return tensors


def _read_tensor_row(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """One row of the table: name, shape (turned to rows first), type id, offset in the data section."""
    name = cursor.string("a tensor name", MAX_NAME_BYTES)
    num_dimensions = cursor.scalar(UINT32, name)
    if num_dimensions > MAX_DIMENSIONS:
        cursor.fail(f"tensor {name!r} has {num_dimensions} dimensions; at most {MAX_DIMENSIONS} are allowed")
    shape = tuple(cursor.scalar(UINT64, name) for _ in range(num_dimensions))
    return name, shape[::-1], cursor.scalar(UINT32, name), cursor.scalar(UINT64, name)


def _locate_tensor(cursor: Cursor, name: str, shape: tuple[int, ...], type_id: int, offset: int) -> GgufTensor:
    """Check that a tensor of this shape and type fits the file at `offset`."""
    if type_id not in GGML_TYPES:
        cursor.fail(f"tensor {name!r} has unknown type {type_id}")
    ggml_type = GGML_TYPES[type_id]
    row_length = shape[-1] if shape else 1
    if row_length % ggml_type.block_elements:
        cursor.fail(
            f"tensor {name!r} has rows of {row_length} elements, but {ggml_type.name} packs"
            f" {ggml_type.block_elements} at a time"
        )
    num_elements = 1
    for size in shape:
        num_elements *= size
    num_bytes = num_elements // ggml_type.block_elements * ggml_type.block_bytes
    if offset + num_bytes > len(cursor.data):
        cursor.fail(
            f"tensor {name!r} ends at byte {offset + num_bytes}, but the file has {len(cursor.data)}"
            " (is the download complete?)"
        )
    return GgufTensor(name, shape, ggml_type.name, offset, num_bytes)
