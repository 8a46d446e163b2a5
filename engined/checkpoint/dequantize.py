"""Turns the blocks of a GGUF tensor into float32, in numpy. Workers only, through `models.checkpoint`; no torch.

The types of the small models that people run on a CPU have code of their own, several times faster than that of the
`gguf` package, which does the rest. Work goes in chunks that stay in the CPU's cache; numpy releases the interpreter
lock in them, so several threads can work at once.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engined.checkpoint.ggml_types import GGML_TYPES_BY_NAME
from engined.checkpoint.gguf import GgufFile

Floats = NDArray[np.float32]
Blocks = NDArray[np.uint8]

# 4096 blocks of 32 weights are 512 KiB of float32. 1024 blocks took 25 % longer for SmolLM2-135M.
_CHUNK_WEIGHTS = 4096 * 32


def read_gguf_tensor(file: GgufFile, name: str, slices: tuple[slice, ...], out: Floats) -> None:
    """Write the part `slices` of tensor `name` into `out`, which has the shape of that part.

    `slices` has one slice a dimension (rows first; one or two dimensions, step 1). Only the bytes of the blocks that
    hold the part are touched.
    """
    tensor = file.tensors[name]
    ggml_type = GGML_TYPES_BY_NAME[tensor.type_name]
    blocks = np.frombuffer(file.raw(name), np.uint8).reshape(*tensor.shape[:-1], -1, ggml_type.block_bytes)
    start, stop, _ = slices[-1].indices(tensor.shape[-1])
    first_block, end_block = start // ggml_type.block_elements, -(-stop // ggml_type.block_elements)
    part = blocks[*slices[:-1], first_block:end_block]
    part_rows = part.reshape(-1, *part.shape[-2:])
    skipped = start - first_block * ggml_type.block_elements
    _dequantize_rows(tensor.type_name, part_rows, skipped, out.reshape(part_rows.shape[0], -1))


def _dequantize_rows(type_name: str, rows: Blocks, skipped: int, out: Floats) -> None:
    """Dequantize `rows` [n, blocks, block_bytes] into `out` [n, columns], leaving out the first `skipped` columns."""
    block_elements = GGML_TYPES_BY_NAME[type_name].block_elements
    convert = _FAST_TYPES.get(type_name)
    row_elements = rows.shape[1] * block_elements
    step = max(1, _CHUNK_WEIGHTS // max(1, row_elements))
    in_place = convert is not None and row_elements == out.shape[1] and out.flags.c_contiguous
    for begin in range(0, rows.shape[0], step):
        chunk = rows[begin : begin + step]
        target = out[begin : begin + step]
        if convert is None:
            values = _dequantize_by_gguf(type_name, chunk)
            target[:] = values[:, skipped : skipped + target.shape[1]]
            continue
        values = target if in_place else np.empty((chunk.shape[0], row_elements), np.float32)
        convert(chunk.reshape(-1, chunk.shape[2]), values.reshape(-1, block_elements))
        if not in_place:
            target[:] = values[:, skipped : skipped + target.shape[1]]


def _dequantize_by_gguf(type_name: str, rows: Blocks) -> Floats:
    packed = np.ascontiguousarray(rows).reshape(rows.shape[0], -1)
    # Imported only where a type needs it: it brings a YAML parser among others, and takes 30 ms.
    gguf, quants = importlib.import_module("gguf"), importlib.import_module("gguf.quants")
    values: Any = quants.dequantize(packed, gguf.GGMLQuantizationType[type_name])
    return np.asarray(values, np.float32)


# Each of these takes blocks [n, block_bytes] and fills values [n, block_elements].


def _from_float32(blocks: Blocks, out: Floats) -> None:
    out[:] = np.ascontiguousarray(blocks).view(np.float32)


def _from_float16(blocks: Blocks, out: Floats) -> None:
    out[:] = np.ascontiguousarray(blocks).view(np.float16)


def _from_bfloat16(blocks: Blocks, out: Floats) -> None:
    np.left_shift(np.ascontiguousarray(blocks).view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)


def _from_q4_0(blocks: Blocks, out: Floats) -> None:
    """Scale, 32 numbers of 4 bits around 8; byte i holds numbers i and i + 16."""
    scale, packed = _half(blocks, 0), blocks[:, 2:]
    centred = np.concatenate((packed & 15, packed >> 4), axis=1).view(np.int8) - np.int8(8)
    np.multiply(centred, scale, out=out, casting="unsafe")


def _from_q4_1(blocks: Blocks, out: Floats) -> None:
    """Scale, minimum, 32 numbers of 4 bits; byte i holds numbers i and i + 16."""
    scale, minimum, packed = _half(blocks, 0), _half(blocks, 2), blocks[:, 4:]
    np.multiply(packed & 15, scale, out=out[:, :16], casting="unsafe")
    np.multiply(packed >> 4, scale, out=out[:, 16:], casting="unsafe")
    out += minimum


def _from_q8_0(blocks: Blocks, out: Floats) -> None:
    """Scale, 32 signed bytes."""
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=out, casting="unsafe")


def _half(blocks: Blocks, offset: int) -> Floats:
    """The float16 at byte `offset` of each block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


_FAST_TYPES: dict[str, Callable[[Blocks, Floats], None]] = {
    "F32": _from_float32,
    "F16": _from_float16,
    "BF16": _from_bfloat16,
    "Q4_0": _from_q4_0,
    "Q4_1": _from_q4_1,
    "Q8_0": _from_q8_0,
}
