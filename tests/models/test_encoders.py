"""The BERT family against transformers: fp32 within 1e-4, in batches of different lengths; and which files it takes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file

from engined.checkpoint.load import load_model_info
from engined.checkpoint.partition import num_rank_parameters
from engined.errors import CheckpointError
from engined.layers.context import LayerContext
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.bert import BertModel
from engined.models.loader import open_checkpoint
from engined.models.registry import build_encoder
from tests.models.encoder_ranks import rank_main
from tests.models.encoders import VARIANTS, flat_batch, make_encoder, random_tokens, reference_output

SEQUENCES = [random_tokens(length, seed=length) for length in (9, 1, 64, 17, 2)]
SCORED = [variant for variant in VARIANTS if "-" in variant and variant != "xlm-roberta"]


def open_encoder(folder: Path) -> BertModel:
    info = load_model_info(folder)
    context = LayerContext(dtype=torch.float32, device=torch.device("cpu"), tp=TensorParallelGroup())
    model = build_encoder(info, context)
    model.load(open_checkpoint(info))
    return model


@torch.inference_mode()
def compute(model: BertModel, sequences: list[list[int]], types: list[list[int]] | None = None) -> list[torch.Tensor]:
    """The states [num_tokens, hidden_size] of each sequence of one batch."""
    return list(torch.split(model(flat_batch(sequences, types)), [len(tokens) for tokens in sequences]))


@torch.inference_mode()
def score(model: BertModel, states: torch.Tensor) -> torch.Tensor:
    """The raw scores [num_labels] of a sequence with these states."""
    return model.score(states[:1])[0]


def rewrite(folder: Path, changes: dict[str, torch.Tensor | None], prefix: str = "") -> None:
    """Replace tensors of a checkpoint (None removes one), then put `prefix` before every name."""
    tensors: dict[str, Any] = {**load_file(folder / "model.safetensors"), **changes}
    kept = {prefix + name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


@pytest.mark.parametrize("variant", VARIANTS)
def test_batch_equals_transformers(variant: str, tmp_path: Path) -> None:
    reference = make_encoder(variant)
    reference.save_pretrained(tmp_path)
    model = open_encoder(tmp_path)
    token_types = None
    if model.info.architecture == "bert":
        token_types = [[0] * (len(tokens) // 2) + [1] * (len(tokens) - len(tokens) // 2) for tokens in SEQUENCES]
    for index, (tokens, states) in enumerate(zip(SEQUENCES, compute(model, SEQUENCES, token_types), strict=True)):
        expected = reference_output(reference, tokens, token_types and token_types[index])
        actual = score(model, states) if variant in SCORED else states
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_a_sequence_has_the_same_states_in_any_batch(tmp_path: Path) -> None:
    make_encoder("bert").save_pretrained(tmp_path)
    model = open_encoder(tmp_path)
    for tokens, states in zip(SEQUENCES, compute(model, SEQUENCES), strict=True):
        torch.testing.assert_close(compute(model, [tokens])[0], states, rtol=0, atol=1e-5)


def test_references_depend_on_segments_and_positions() -> None:
    """The comparisons would prove nothing if these made no difference."""
    reference, tokens = make_encoder("bert"), SEQUENCES[0]
    plain = reference_output(reference, tokens)
    assert (reference_output(reference, tokens, [1] * len(tokens)) - plain).abs().max() > 0.05
    assert (reference_output(reference, tokens[::-1])[0] - plain[-1]).abs().max() > 0.05


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_names_with_and_without_the_prefix(prefix: str, tmp_path: Path) -> None:
    reference = make_encoder("bert")
    reference.save_pretrained(tmp_path)
    positions = torch.arange(64).unsqueeze(0)
    rewrite(tmp_path, {"embeddings.position_ids": positions}, prefix)
    model = open_encoder(tmp_path)
    expected = reference_output(reference, SEQUENCES[0])
    torch.testing.assert_close(compute(model, SEQUENCES[:1])[0], expected, rtol=0, atol=1e-4)


def test_the_unused_pooler_may_be_missing(tmp_path: Path) -> None:
    make_encoder("bert").save_pretrained(tmp_path)
    rewrite(tmp_path, {"pooler.dense.weight": None, "pooler.dense.bias": None})
    open_encoder(tmp_path)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_memory_plan_counts_what_a_rank_holds(variant: str, size: int, tmp_path: Path) -> None:
    make_encoder(variant).save_pretrained(tmp_path)
    info = load_model_info(tmp_path)
    group = TensorParallelGroup(rank=size - 1, size=size)
    model = build_encoder(info, LayerContext(dtype=torch.float32, device=torch.device("cpu"), tp=group))
    assert num_rank_parameters(info, size) == sum(parameter.numel() for parameter in model.parameters())


def test_tensors_that_do_not_fit_are_all_named(tmp_path: Path) -> None:
    make_encoder("bert-score").save_pretrained(tmp_path)
    rewrite(
        tmp_path,
        {
            "bert.encoder.layer.1.output.dense.bias": None,
            "bert.embeddings.position_embeddings.weight": torch.zeros(65, 48),
            "bert.encoder.layer.3.output.dense.bias": torch.zeros(48),
            "bert.pooler.dense.bias": None,
        },
    )
    with pytest.raises(CheckpointError) as raised:
        open_encoder(tmp_path)
    message = str(raised.value)
    assert "missing: bert.encoder.layer.1.output.dense.bias, bert.pooler.dense.bias" in message
    assert "position_embeddings.weight (model.safetensors) is (65, 48), expected (64, 48)" in message
    assert "not part of the model: bert.encoder.layer.3.output.dense.bias" in message


def test_two_ranks_equal_one(tmp_path: Path) -> None:
    make_encoder("bert-score").save_pretrained(tmp_path)
    model = open_encoder(tmp_path)
    expected = score(model, compute(model, SEQUENCES)[0])
    mp.spawn(rank_main, args=(str(tmp_path), SEQUENCES), nprocs=2)
    torch.testing.assert_close(torch.load(tmp_path / "scores.pt"), expected, rtol=0, atol=1e-5)
