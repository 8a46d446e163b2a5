"""Which rank counts fit a model, and how many bytes a rank holds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engined.checkpoint.load import load_model_info
from engined.checkpoint.model_info import ModelInfo
from engined.checkpoint.partition import (
    check_tensor_parallel_size,
    num_rank_parameters,
    padded_vocab_size,
    supported_tensor_parallel_sizes,
    weight_bytes,
)
from engined.errors import ConfigError
from engined.layers.context import LayerContext
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.registry import build_model

INFO = ModelInfo(
    path="/models/tiny",
    name="tiny",
    checkpoint_format="safetensors",
    architecture="qwen3",
    vocab_size=131,
    hidden_size=48,
    intermediate_size=96,
    num_layers=2,
    num_attention_heads=8,
    num_kv_heads=4,
    head_dim=16,
    max_position=64,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    has_qk_norm=True,
)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "inner", "sizes"), [(9, 3, 1536, [1, 3]), (8, 4, 96, [1, 2, 4]), (8, 8, 10, [1, 2])]
)
def test_sizes(heads: int, kv_heads: int, inner: int, sizes: list[int]) -> None:
    info = replace(INFO, num_attention_heads=heads, num_kv_heads=kv_heads, intermediate_size=inner)
    assert supported_tensor_parallel_sizes(info) == sizes


def test_refusal_names_the_sizes_that_fit() -> None:
    check_tensor_parallel_size(INFO, 4)
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size 3 does not fit tiny.*these fit: 1, 2, 4"):
        check_tensor_parallel_size(INFO, 3)


def test_padded_vocab_size() -> None:
    assert [padded_vocab_size(131, size) for size in (1, 2, 4)] == [131, 132, 132]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "info",
    [
        INFO,
        replace(INFO, tie_word_embeddings=True, attention_bias=True, attention_output_bias=True),
        replace(INFO, architecture="llama", has_qk_norm=False, mlp_bias=True),
        replace(INFO, architecture="qwen2", has_qk_norm=False, attention_bias=True),
    ],
)
def test_bytes_are_those_of_the_built_model(info: ModelInfo, size: int) -> None:
    group = TensorParallelGroup(rank=size - 1, size=size)
    model = build_model(info, LayerContext(dtype=torch.bfloat16, device=torch.device("cpu"), tp=group))
    head_copy = model.embed_tokens.weight.nbytes if info.tie_word_embeddings else 0
    expected = sum(parameter.nbytes for parameter in model.parameters()) + head_copy
    assert weight_bytes(info, "bfloat16", size) == expected


def test_default_model(default_gguf: Path) -> None:
    info = load_model_info(default_gguf)
    assert supported_tensor_parallel_sizes(info) == [1, 3]
    assert num_rank_parameters(info) == info.num_parameters
    assert weight_bytes(info, "float32") == 4 * (info.num_parameters + info.vocab_size * info.hidden_size)
