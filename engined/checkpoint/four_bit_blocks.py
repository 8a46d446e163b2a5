"""Hands out the 4-bit blocks of a GGUF tensor as they are, in one form, in numpy. Workers only; no torch.

That form is Q4_1's: 32 weights, each a number of 4 bits times a scale plus a minimum, both float16. Q4_0 is the special
case in which the minimum is -8 scales. Eight blocks of Q4_K share two float16 factors; scale and minimum of each are
products of them with integers of 6 bits, and rounding these products to float16 changes weights by less than 1/2000.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engined.checkpoint.ggml_types import GGML_TYPES_BY_NAME
from engined.checkpoint.gguf import GgufFile

Blocks = NDArray[np.uint8]

BLOCK_WEIGHTS = 32
BLOCK_BYTES = 20
"""Scale and minimum, then 16 bytes: byte i holds the numbers i and, in its upper half, i + 16."""


def block_columns(type_name: str) -> int | None:
    """How many columns a block of `type_name` packs, or None if it is not one of 4 bits that this module knows."""
    return GGML_TYPES_BY_NAME[type_name].block_elements if type_name in _CONVERTERS else None


def read_four_bit_blocks(file: GgufFile, name: str, slices: tuple[slice, slice], out: Blocks) -> None:
    """Write the part `slices` of tensor `name` into `out` [rows, columns / 32, BLOCK_BYTES].

    `block_columns` of the tensor's type must divide where the columns begin and end.
    """
    tensor = file.tensors[name]
    ggml_type = GGML_TYPES_BY_NAME[tensor.type_name]
    rows, columns = slices
    assert columns.start % ggml_type.block_elements == 0 and columns.stop % ggml_type.block_elements == 0
    blocks = np.frombuffer(file.raw(name), np.uint8).reshape(tensor.shape[0], -1, ggml_type.block_bytes)
    part = blocks[rows, columns.start // ggml_type.block_elements : columns.stop // ggml_type.block_elements]
    converted = _CONVERTERS[tensor.type_name](part.reshape(-1, ggml_type.block_bytes))
    out[:] = converted.reshape(out.shape)


def _from_q4_1(blocks: Blocks) -> Blocks:
    return blocks


def _from_q4_0(blocks: Blocks) -> Blocks:
    minimum = _half(blocks, 0) * np.float32(-8)
    return np.concatenate((blocks[:, :2], _half_bytes(minimum), blocks[:, 2:]), axis=1)


def _from_q4_k(blocks: Blocks) -> Blocks:
    """Two factors, 12 bytes of eight scales and eight minimums, 128 bytes: 32 of them hold two blocks, low and high."""
    packed = blocks[:, 4:16]
    first, second, upper = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (upper & 15) | ((first >> 6) << 4)), axis=1)
    minimums = np.concatenate((second & 63, (upper >> 4) | ((second >> 6) << 4)), axis=1)
    pairs = blocks[:, 16:].reshape(-1, 4, 1, BLOCK_WEIGHTS)
    numbers = np.concatenate((pairs & 15, pairs >> 4), axis=2).reshape(-1, 8, BLOCK_WEIGHTS)
    out = np.empty((len(blocks), 8, BLOCK_BYTES), np.uint8)
    out[:, :, :2] = _half_bytes((_half(blocks, 0) * scales)[:, :, None])
    out[:, :, 2:4] = _half_bytes((-_half(blocks, 2) * minimums)[:, :, None])
    out[:, :, 4:] = numbers[:, :, :16] | (numbers[:, :, 16:] << 4)
    return out


def _half(blocks: Blocks, offset: int) -> NDArray[np.float32]:
    """The float16 at byte `offset` of each block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _half_bytes(values: NDArray[np.float32]) -> Blocks:
    """values [..., 1] -> their float16, [..., 2]"""
    return values.astype(np.float16).view(np.uint8)


_CONVERTERS: dict[str, Callable[[Blocks], Blocks]] = {"Q4_0": _from_q4_0, "Q4_1": _from_q4_1, "Q4_K": _from_q4_k}
