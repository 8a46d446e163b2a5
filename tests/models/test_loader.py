"""Checkpoints that do not fit: one error that lists the names, before anything is read."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engined.checkpoint.gguf import GgufFile
from engined.checkpoint.load import load_model_info
from engined.errors import CheckpointError
from engined.layers.context import LayerContext
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.checkpoint import GgufCheckpoint
from engined.models.loader import load_tensors, open_checkpoint
from engined.models.registry import build_model
from tests.checkpoint.gguf_files import MODEL_METADATA, gguf_bytes, write
from tests.models.families import make_reference, reference_logits, save
from tests.models.paged import PagedModel

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def context(rank: int = 0, size: int = 1) -> LayerContext:
    return LayerContext(dtype=torch.float32, device=torch.device("cpu"), tp=TensorParallelGroup(rank=rank, size=size))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(make_reference("llama"), tmp_path)


def change(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replace tensors of a checkpoint; None removes one."""
    tensors: dict[str, Any] = {**load_file(folder / "model.safetensors"), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "model.safetensors")


def load_error(folder: Path) -> str:
    info = load_model_info(folder)
    with pytest.raises(CheckpointError) as raised:
        build_model(info, context()).load(open_checkpoint(info))
    return str(raised.value)


def test_all_problems_are_in_one_error(folder: Path) -> None:
    change(
        folder,
        {
            "model.layers.1.mlp.up_proj.weight": None,
            "model.layers.0.self_attn.q_proj.weight": torch.zeros(48, 40),
            "model.layers.0.self_attn.q_proj.surprise": torch.zeros(1),
        },
    )
    message = load_error(folder)
    assert "missing: model.layers.1.mlp.up_proj.weight" in message
    assert "q_proj.weight (model.safetensors) is (48, 40), expected (48, 48)" in message
    assert "not part of the model: model.layers.0.self_attn.q_proj.surprise" in message
    assert str(folder) in message


def test_many_names_are_cut(folder: Path) -> None:
    change(folder, {f"extra.{i}": torch.zeros(1) for i in range(20)})
    assert "and 12 more" in load_error(folder)


def test_missing_head(folder: Path) -> None:
    change(folder, {"lm_head.weight": None})
    message = load_error(folder)
    assert "missing: lm_head.weight" in message
    assert "tie_word_embeddings is false" in message


def test_harmless_extras(folder: Path) -> None:
    change(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    PagedModel.open(folder)


def test_a_tied_config_ignores_the_head_in_the_file(tmp_path: Path) -> None:
    reference = make_reference("llama-tied")
    save(reference, tmp_path)
    change(tmp_path, {"lm_head.weight": torch.zeros(131, 48)})
    torch.testing.assert_close(
        PagedModel.open(tmp_path).logits(TOKENS), reference_logits(reference, TOKENS), rtol=0, atol=1e-4
    )


def test_truncated_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*is the download complete"):
        load_model_info(folder)


def test_each_rank_reads_its_rows_and_columns(folder: Path) -> None:
    """The shares of two ranks, put together, are the tensors of the file."""
    info = load_model_info(folder)
    ranks = [build_model(info, context(rank, size=2)) for rank in range(2)]
    for model in ranks:
        load_tensors(
            model.tensor_specs(), open_checkpoint(info)
        )  # without packing, after which no plain weight is left
    file = load_file(folder / "model.safetensors")
    shares: dict[str, list[torch.Tensor]] = {}
    for model in ranks:
        for spec in model.tensor_specs():
            shares.setdefault(spec.name, []).append(spec.destination)
    for name, parts in shares.items():
        axis = 1 if "o_proj" in name or "down_proj" in name else 0
        whole = parts[0] if "norm" in name else torch.cat(parts, axis)
        assert torch.equal(whole, file[name]), name
    assert ranks[0].embed_tokens.weight.shape == (66, 48)


def q8_0(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Values as Q8_0 blocks, and what the blocks stand for."""
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    codes = np.round(blocks / scales.astype(np.float32)).astype(np.int8)
    packed = np.concatenate((scales.view(np.uint8), codes.view(np.uint8)), axis=1)
    return packed.tobytes(), (codes * scales.astype(np.float32)).reshape(values.shape)


def pair_rows(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """The order in which llama.cpp's converter stores the rows of q and k: half-rotation pairs side by side."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_gguf_slices_and_row_order(architecture: str, tmp_path: Path) -> None:
    """Rows of q and k are put back in order for "llama" only; columns are cut at block borders and inside of blocks."""
    generator = np.random.default_rng(0)
    packed_q, values_q = q8_0(generator.standard_normal((32, 64), np.float32))
    packed_o, values_o = q8_0(generator.standard_normal((16, 96), np.float32))
    tensors = {
        "blk.0.attn_q.weight": ((32, 64), "Q8_0", packed_q),
        "blk.0.attn_output.weight": ((16, 96), "Q8_0", packed_o),
    }
    file = GgufFile.open(write(tmp_path / "m.gguf", gguf_bytes(MODEL_METADATA, tensors)))
    info = replace(load_model_info(tmp_path / "m.gguf"), architecture=architecture, head_dim=8)
    checkpoint = GgufCheckpoint(file, info)

    stored = values_q
    expected = stored
    if architecture == "llama":
        expected = np.empty_like(stored)
        expected[pair_rows(np.arange(32), 8)] = stored
    destination = torch.empty(16, 64, dtype=torch.bfloat16)
    checkpoint.read_into("model.layers.0.self_attn.q_proj.weight", (slice(16, 32), slice(0, 64)), destination)
    assert torch.equal(destination, torch.from_numpy(expected[16:]).bfloat16())

    for columns in (slice(32, 64), slice(24, 72)):
        part = torch.empty(16, columns.stop - columns.start)
        checkpoint.read_into("model.layers.0.self_attn.o_proj.weight", (slice(0, 16), columns), part)
        assert torch.equal(part, torch.from_numpy(values_o[:, columns]))
    assert checkpoint.describe("model.layers.0.self_attn.o_proj.weight") == "blk.0.attn_output.weight"


@pytest.mark.parametrize("rank", [None, 1])
def test_loading_is_reported_in_bytes_of_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rank: int | None
) -> None:
    """Every part of a tensor is a step, so a slow disk that moves is never silent for long."""
    monkeypatch.setattr("engined.process.progress.REPORT_INTERVAL", 0.0)
    monkeypatch.setattr("engined.process.progress._MEGABYTE", 1.0)
    monkeypatch.setattr("engined.models.checkpoint._PART_WEIGHTS", 1000)
    reports: list[tuple[str, str]] = []
    info = load_model_info(folder)
    model = build_model(info, context() if rank is None else context(rank, 2))
    specs = model.tensor_specs("model.")
    model.load(open_checkpoint(info), lambda phase, detail="": reports.append((phase, detail)))
    numbers = [
        tuple(map(int, re.findall(r"\d+", detail)))
        for phase, detail in reports
        if phase == "loading weights" and detail
    ]
    num_bytes = sum(spec.destination.numel() for spec in specs) * 4
    assert numbers[0] == (0, num_bytes, 0, len(specs)) and numbers[-1] == (num_bytes, num_bytes, len(specs), len(specs))
    assert numbers == sorted(numbers) and len(numbers) > 2 * len(specs)
    if rank is None:
        assert num_bytes > 0.9 * (folder / "model.safetensors").stat().st_size
    assert reports[-1] == ("packing weights", f"{len(reports) - len(numbers) - 1} of {len(reports) - len(numbers) - 1}")
