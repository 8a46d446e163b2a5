"""Dequantization equals that of the `gguf` package, whole and in parts, and is fast for the default model."""

import struct
import time
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest

from engined.checkpoint.dequantize import read_gguf_tensor
from engined.checkpoint.ggml_types import GGML_TYPES, GGML_TYPES_BY_NAME, SUPPORTED_GGML_TYPES
from engined.checkpoint.gguf import GgufFile
from tests.checkpoint.gguf_files import header, tensor_row

TYPE_IDS = {ggml_type.name: type_id for type_id, ggml_type in GGML_TYPES.items()}
NUM_ROWS = 70


def random_file(type_name: str, num_columns: int) -> tuple[GgufFile, np.ndarray]:
    """A file with one tensor "x" of random blocks, and its values according to the `gguf` package."""
    ggml_type = GGML_TYPES_BY_NAME[type_name]
    row_bytes = num_columns // ggml_type.block_elements * ggml_type.block_bytes
    packed = np.random.default_rng(0).integers(0, 256, (NUM_ROWS, row_bytes), dtype=np.uint8)
    if ggml_type.block_elements > 1:
        # Random bytes make infinite scales now and then; a second byte of 0x2f keeps every float16 of them small.
        for offset in range(0, row_bytes, 2):
            packed[:, offset + 1] &= 0x2F
    start = header(1, 0) + tensor_row("x", (NUM_ROWS, num_columns), TYPE_IDS[type_name], 0)
    start += bytes(-len(start) % 32)
    file = GgufFile(Path("x.gguf"), memoryview(start + packed.tobytes()))
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[type_name])
    return file, expected


@pytest.mark.parametrize("type_name", SUPPORTED_GGML_TYPES)
@pytest.mark.parametrize(
    "part", [(slice(0, NUM_ROWS), slice(0, 512)), (slice(3, 41), slice(256, 512)), (slice(7, 8), slice(40, 300))]
)
def test_equals_the_gguf_package(type_name: str, part: tuple[slice, slice]) -> None:
    file, expected = random_file(type_name, 512)
    out = np.empty(expected[part].shape, np.float32)
    with np.errstate(all="ignore"):
        read_gguf_tensor(file, "x", part, out)
    np.testing.assert_array_equal(out, expected[part])


def test_table_agrees_with_the_gguf_package() -> None:
    for type_id, ggml_type in GGML_TYPES.items():
        kind = gguf.GGMLQuantizationType(type_id)
        assert kind.name == ggml_type.name
        if ggml_type.name != "Q8_1":  # gguf counts float scales there, files have half precision ones
            assert gguf.GGML_QUANT_SIZES[kind] == (ggml_type.block_elements, ggml_type.block_bytes)


def test_vector() -> None:
    start = header(1, 0) + tensor_row("x", (6,), 0, 0)
    start += bytes(-len(start) % 32)
    file = GgufFile(Path("x.gguf"), memoryview(start + struct.pack("<6f", *range(6))))
    out = np.empty(3, np.float32)
    read_gguf_tensor(file, "x", (slice(2, 5),), out)
    assert out.tolist() == [2, 3, 4]


def test_default_model_is_read_fast(default_gguf: Path) -> None:
    """About 0.5 s on one core; the gguf package needs 2.4 s. The bound leaves room for a busy machine."""
    file = GgufFile.open(default_gguf)
    started = time.process_time()
    for name, tensor in file.tensors.items():
        whole = tuple(slice(0, size) for size in tensor.shape)
        read_gguf_tensor(file, name, whole, np.empty(tensor.shape, np.float32))
    assert time.process_time() - started < 2.0
