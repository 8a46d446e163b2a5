"""Blocks of 4 bits from a file to the layers: taken as they are, or made while the tensor is read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engined.checkpoint.gguf import GgufFile
from engined.checkpoint.load import load_model_info
from engined.errors import CheckpointError
from engined.layers.tensor_spec import BlockDestination, TensorSpec
from engined.models.checkpoint import GgufCheckpoint
from engined.models.loader import load_tensors
from tests.checkpoint.gguf_files import MODEL_METADATA, gguf_bytes, write
from tests.models.test_loader import pair_rows, q8_0

HEAD_DIM = 8


def checkpoint(folder: Path, name: str, shape: tuple[int, int], type_name: str, content: bytes) -> GgufCheckpoint:
    file = GgufFile.open(write(folder / "m.gguf", gguf_bytes(MODEL_METADATA, {name: (shape, type_name, content)})))
    return GgufCheckpoint(file, replace(load_model_info(folder / "m.gguf"), head_dim=HEAD_DIM))


def load(
    source: GgufCheckpoint, shape: tuple[int, int], columns: slice, quantize: Callable[[Tensor, Tensor], None]
) -> Tensor:
    """All rows of the only tensor of `source`."""
    (name,) = source.shapes
    blocks = torch.zeros(shape[0], (columns.stop - columns.start) // 32, 20, dtype=torch.uint8)
    destination = BlockDestination(blocks=blocks, quantize=quantize)
    slices = (slice(0, shape[0]), columns)
    load_tensors([TensorSpec(name=name, shape=shape, slices=slices, destination=destination)], source)
    return blocks


def refuse(weights: Tensor, blocks: Tensor) -> None:
    raise AssertionError("the file has blocks: nothing is to be rounded")


def test_blocks_of_the_file_are_kept_and_their_rows_put_in_order(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 256, (32, 2, 20), np.uint8)
    source = checkpoint(tmp_path, "blk.0.attn_q.weight", (32, 64), "Q4_1", stored.tobytes())
    blocks = load(source, (32, 64), slice(32, 64), refuse)
    expected = np.empty_like(stored)
    expected[pair_rows(np.arange(32), HEAD_DIM)] = stored
    assert np.array_equal(blocks.numpy(), expected[:, 1:])


def test_other_tensors_are_rounded_as_they_are_read(tmp_path: Path) -> None:
    packed, values = q8_0(np.random.default_rng(0).standard_normal((16, 96), np.float32))
    source = checkpoint(tmp_path, "blk.0.attn_output.weight", (16, 96), "Q8_0", packed)
    seen: list[Tensor] = []

    def quantize(weights: Tensor, blocks: Tensor) -> None:
        seen.append(weights.clone())
        blocks.fill_(7)

    blocks = load(source, (16, 96), slice(32, 96), quantize)
    assert (blocks == 7).all()
    assert torch.equal(seen[0], torch.from_numpy(values[:, 32:96]).bfloat16())


def test_ranks_do_not_cut_blocks(tmp_path: Path) -> None:
    source = checkpoint(tmp_path, "blk.0.attn_output.weight", (16, 96), "Q4_0", bytes(16 * 3 * 18))
    with pytest.raises(CheckpointError, match="cut by --tensor-parallel-size .*: blk.0.attn_output.weight between"):
        load(source, (16, 96), slice(48, 96), refuse)
