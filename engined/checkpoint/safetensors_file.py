"""Headers of a safetensors checkpoint: model.safetensors, or shards with model.safetensors.index.json. No torch.

The supervisor counts parameters with it, the workers find and read their tensors. Only safetensors is read: the .bin
and .pt files of PyTorch are pickles, which can run code.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import orjson

from engined.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100 << 20

FloatDtype = Literal["bfloat16", "float16", "float32"]

FLOAT_DTYPES: dict[str, FloatDtype] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_DTYPE_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor of a checkpoint: where it is and what it looks like."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As the header spells it, for example "BF16"."""
    file: Path

    @property
    def num_bytes(self) -> int:
        """In the file; 0 for a type that we do not know."""
        return math.prod(self.shape) * _DTYPE_BYTES.get(self.dtype, 0)


class SafetensorsFolder:
    """The tensors of all safetensors files of one model, by name."""

    def __init__(self, path: Path, tensors: Mapping[str, SafetensorsTensor]) -> None:
        """Position numbers, which old files of encoders hold beside the weights, are left out."""
        self.path = path
        weights = {name: tensor for name, tensor in tensors.items() if not name.endswith("embeddings.position_ids")}
        self.tensors = MappingProxyType(weights)

    @classmethod
    def open(cls, folder: Path) -> "SafetensorsFolder":
        """Read all headers of `folder`. Raises ModelNotFoundError, CheckpointError or UnsupportedModelError."""
        if (folder / SINGLE_FILE).is_file():
            return cls(folder, read_header(folder / SINGLE_FILE))
        if (folder / INDEX_FILE).is_file():
            return cls(folder, _read_shards(folder))
        raise _nothing_to_read(folder)

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors together."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def main_dtype(self) -> FloatDtype:
        """The dtype of most elements. Raises UnsupportedModelError if a tensor is not a float of 16 or 32 bits."""
        counts: dict[FloatDtype, int] = dict.fromkeys(FLOAT_DTYPES.values(), 0)
        for tensor in self.tensors.values():
            if tensor.dtype not in FLOAT_DTYPES:
                raise UnsupportedModelError(
                    f"{tensor.file}: tensor {tensor.name!r} has dtype {tensor.dtype}, which is not supported"
                    f" ({', '.join(FLOAT_DTYPES)} are)"
                )
            counts[FLOAT_DTYPES[tensor.dtype]] += math.prod(tensor.shape)
        return max(counts, key=lambda dtype: counts[dtype])


def read_header(path: Path) -> dict[str, SafetensorsTensor]:
    """Tensors that the header of one file declares; every one is checked to lie inside the file."""
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            (header_bytes,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
            if header_bytes > min(MAX_HEADER_BYTES, file_bytes - 8) or header_bytes < 2:
                raise _damaged(path, f"its header claims {header_bytes} bytes, but the file has {file_bytes}")
            header = orjson.loads(file.read(header_bytes))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise _damaged(path, f"its header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    data_bytes = file_bytes - 8 - header_bytes
    return {
        name: _parse_entry(path, name, entry, data_bytes) for name, entry in header.items() if name != "__metadata__"
    }


def _parse_entry(path: Path, name: str, entry: Any, data_bytes: int) -> SafetensorsTensor:
    """Check one entry of a header: {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}."""
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"the header entry of tensor {name!r} is malformed")
    begin, end = offsets
    if end > data_bytes:
        raise _damaged(path, f"tensor {name!r} ends at byte {end} of {data_bytes} (is the download complete?)")
    if dtype in _DTYPE_BYTES and end - begin != math.prod(shape) * _DTYPE_BYTES[dtype]:
        raise _damaged(path, f"tensor {name!r} of shape {shape} and dtype {dtype} has {end - begin} bytes")
    return SafetensorsTensor(name, tuple(shape), dtype, path)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _read_shards(folder: Path) -> dict[str, SafetensorsTensor]:
    """Tensors of all shards. Every tensor must be in the shard where the index says it is."""
    index = folder / INDEX_FILE
    try:
        content = orjson.loads(index.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise CheckpointError(f"{index}: cannot be read: {error}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: 'weight_map' must map tensor names to files")
    tensors: dict[str, SafetensorsTensor] = {}
    for file_name in sorted(set(weight_map.values())):
        if Path(file_name).name != file_name:
            raise CheckpointError(f"{index}: {file_name!r} is not a plain file name")
        tensors.update(read_header(folder / file_name))
    for name, file_name in weight_map.items():
        if name not in tensors or tensors[name].file.name != file_name:
            raise CheckpointError(f"{folder / file_name}: tensor {name!r} is missing, though {index.name} lists it")
    return tensors


def _nothing_to_read(folder: Path) -> ModelNotFoundError:
    present = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    weights = [name for name in present if name.endswith((".bin", ".pt", ".pth", ".safetensors", ".gguf"))]
    found = ", ".join(weights[:5]) + (" ..." if len(weights) > 5 else "") if weights else "no weights"
    remedy = ""
    if any(name.endswith((".bin", ".pt", ".pth")) for name in weights):
        remedy = "; .bin and .pt files are pickles and are not read: convert them to safetensors"
    elif any(name.endswith(".gguf") for name in weights):
        remedy = "; to serve a .gguf file, name the file itself"
    return ModelNotFoundError(
        f"{folder}: looked for {SINGLE_FILE} or {INDEX_FILE}, but the folder holds {found}{remedy}"
    )


def _damaged(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: damaged safetensors file: {problem}")
