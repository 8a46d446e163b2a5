"""Blocks of 4 bits mean the same weights in our form as in the file, whole and in parts."""

import numpy as np
import pytest

from engined.checkpoint.four_bit_blocks import BLOCK_BYTES, block_columns, read_four_bit_blocks
from tests.checkpoint.test_dequantize import NUM_ROWS, random_file


def values_of(blocks: np.ndarray) -> np.ndarray:
    """[rows, blocks, BLOCK_BYTES] -> weights [rows, columns]"""
    factors = np.ascontiguousarray(blocks[:, :, :4]).view(np.float16).astype(np.float32)
    numbers = np.concatenate((blocks[:, :, 4:] & 15, blocks[:, :, 4:] >> 4), axis=2)
    return (numbers * factors[:, :, :1] + factors[:, :, 1:]).reshape(len(blocks), -1)


@pytest.mark.parametrize(("type_name", "tolerance"), [("Q4_0", 0), ("Q4_1", 0), ("Q4_K", 2**-11)])
@pytest.mark.parametrize("part", [(slice(0, NUM_ROWS), slice(0, 512)), (slice(3, 41), slice(256, 512))])
def test_weights_are_those_of_the_file(type_name: str, tolerance: float, part: tuple[slice, slice]) -> None:
    file, expected = random_file(type_name, 512)
    rows, columns = (side.stop - side.start for side in part)
    out = np.empty((rows, columns // 32, BLOCK_BYTES), np.uint8)
    read_four_bit_blocks(file, "x", part, out)
    # Rounding scale and minimum of Q4_K is felt most where they cancel out.
    largest = np.abs(expected[part]).reshape(rows, -1, 32).max(axis=2, keepdims=True)
    error = np.abs(values_of(out) - expected[part]).reshape(rows, -1, 32)
    assert (error <= largest * 4 * tolerance).all()


def test_other_types_have_no_such_blocks() -> None:
    assert [block_columns(name) for name in ("Q4_0", "Q4_1", "Q4_K")] == [32, 32, 256]
    assert not any(block_columns(name) for name in ("Q8_0", "Q6_K", "F32"))
