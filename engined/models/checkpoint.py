"""Reads parts of tensors into torch, from safetensors or GGUF, behind one interface. Rank processes, at load time."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engined.checkpoint.dequantize import read_gguf_tensor
from engined.checkpoint.four_bit_blocks import block_columns, read_four_bit_blocks
from engined.checkpoint.gguf import GgufFile
from engined.checkpoint.model_info import ModelInfo
from engined.checkpoint.safetensors_file import SafetensorsFolder
from engined.checkpoint.tensor_names import gguf_tensor_name, hf_tensor_name
from engined.errors import CheckpointError

# Weights converted at once: 4 MiB of float32, which stay in the CPU's cache until they are copied to their place.
_CHUNK_WEIGHTS = 1 << 20
# What a file gives as it is, in parts so large that their number costs nothing, and so small that a disk of 10 MB/s
# gives each of 64 threads that share it one every half minute.
_PART_WEIGHTS = 2 << 20

OnRead = Callable[[int], None]
"""Told after each part how many bytes of the file it took."""


class Checkpoint(ABC):
    """The tensors of one model by their Hugging Face names. Reading is safe from several threads."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]
    """Bytes in the file."""

    @abstractmethod
    def read_into(
        self, name: str, slices: tuple[slice, ...], destination: Tensor, on_read: OnRead = lambda _: None
    ) -> None:
        """Copy the part `slices` of a tensor into `destination`, converting to its type."""

    def block_columns(self, name: str) -> int | None:
        """How many columns of this tensor a block holds, if the file has it in blocks of 4 bits; else None."""
        return None

    def read_blocks_into(
        self, name: str, slices: tuple[slice, ...], destination: Tensor, on_read: OnRead = lambda _: None
    ) -> None:
        """Copy the part `slices` of a tensor of such blocks, cut between them, into `destination`, which is as
        `BlockDestination.blocks`."""
        raise AssertionError(f"{name} has no blocks: block_columns tells")

    def num_bytes(self, name: str, num_weights: int) -> int:
        """About how many bytes of the file hold so many weights of a tensor."""
        return self.sizes[name] * num_weights // max(1, math.prod(self.shapes[name]))

    @abstractmethod
    def describe(self, name: str) -> str:
        """The name of a tensor, present or missing, as its file spells it."""


class SafetensorsCheckpoint(Checkpoint):
    """A folder of safetensors files."""

    def __init__(self, folder: SafetensorsFolder) -> None:
        """Maps every file that `folder` lists. Raises CheckpointError for one that cannot be read."""
        self.shapes = {name: tensor.shape for name, tensor in folder.tensors.items()}
        self.sizes = {name: tensor.num_bytes for name, tensor in folder.tensors.items()}
        self._tensors = folder.tensors
        self._files = {file: _open_safetensors(file) for file in {t.file for t in folder.tensors.values()}}
        # A tensor that is missing is missing from the file, if there is but one.
        self.path = next(iter(self._files)) if len(self._files) == 1 else folder.path

    def read_into(
        self, name: str, slices: tuple[slice, ...], destination: Tensor, on_read: OnRead = lambda _: None
    ) -> None:
        tensor = self._files[self._tensors[name].file].get_slice(name)
        rows, columns = slices[0], slices[1:]
        step = max(1, _PART_WEIGHTS // max(1, math.prod(destination.shape[1:])))
        for begin in range(0, len(destination), step):
            target = destination[begin : begin + step]
            first_row = rows.start + begin
            target.copy_(tensor[(slice(first_row, first_row + len(target)), *columns)])
            on_read(self.num_bytes(name, target.numel()))

    def describe(self, name: str) -> str:
        return f"{name} ({self._tensors[name].file.name})" if name in self._tensors else name


def _open_safetensors(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: damaged safetensors file: {error}") from error


class GgufCheckpoint(Checkpoint):
    """One GGUF file."""

    def __init__(self, file: GgufFile, info: ModelInfo) -> None:
        self.path = file.path
        self._file = file
        self._gguf_names = {hf_tensor_name(name): name for name in file.tensors}
        self.shapes = {name: file.tensors[stored].shape for name, stored in self._gguf_names.items()}
        self.sizes = {name: file.tensors[stored].num_bytes for name, stored in self._gguf_names.items()}
        self._head_dim = info.head_dim
        # llama.cpp stores the rows of these projections so that rotary pairs are neighbours; only for "llama".
        self._has_paired_rows = info.architecture == "llama"

    def read_into(
        self, name: str, slices: tuple[slice, ...], destination: Tensor, on_read: OnRead = lambda _: None
    ) -> None:
        stored = self._gguf_names[name]
        rows, columns = slices[0], slices[1:]
        step = self._rows_at_once(math.prod(destination.shape[1:]))
        for begin in range(0, len(destination), step):
            target = destination[begin : begin + step]
            first_row = rows.start + begin
            chunk = np.empty(target.shape, np.float32)
            read_gguf_tensor(self._file, stored, (slice(first_row, first_row + len(target)), *columns), chunk)
            target.copy_(self._in_order(name, torch.from_numpy(chunk)))
            on_read(self.num_bytes(name, target.numel()))

    def block_columns(self, name: str) -> int | None:
        return block_columns(self._file.tensors[self._gguf_names[name]].type_name)

    def read_blocks_into(
        self, name: str, slices: tuple[slice, ...], destination: Tensor, on_read: OnRead = lambda _: None
    ) -> None:
        rows, columns = slices
        step = self._rows_at_once(columns.stop - columns.start)
        for begin in range(0, len(destination), step):
            target = destination[begin : begin + step]
            first_row = rows.start + begin
            chunk = np.empty(target.shape, np.uint8)
            part = (slice(first_row, first_row + len(target)), columns)
            read_four_bit_blocks(self._file, self._gguf_names[name], part, chunk)
            target.copy_(self._in_order(name, torch.from_numpy(chunk)))
            on_read(self.num_bytes(name, len(target) * (columns.stop - columns.start)))

    def describe(self, name: str) -> str:
        return gguf_tensor_name(name)

    def _rows_at_once(self, row_weights: int) -> int:
        """Rows of one chunk, whole heads."""
        return max(1, _CHUNK_WEIGHTS // max(1, row_weights) // self._head_dim) * self._head_dim

    def _in_order(self, name: str, values: Tensor) -> Tensor:
        """Put rows (0, n/2, 1, n/2 + 1, ...) of each head of n rows back in order, if this tensor has them so."""
        if not (self._has_paired_rows and (".q_proj." in name or ".k_proj." in name)):
            return values
        pairs = values.reshape(-1, self._head_dim // 2, 2, *values.shape[1:])
        return pairs.transpose(1, 2).reshape(values.shape)
