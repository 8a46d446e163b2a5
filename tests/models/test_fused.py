"""A forward as one call against the same kernels called layer by layer: the same bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config

from engined.config.schema import Quantization
from engined.kernels.cpu.library import CpuKernels
from tests.models.families import SIZES, make_reference, save
from tests.models.paged import PagedModel

CONFIGS = [
    LlamaConfig(**SIZES, head_dim=16, attention_bias=True, mlp_bias=True),
    MistralConfig(**SIZES, head_dim=16, sliding_window=7),
    Qwen3Config(**SIZES, head_dim=16),
]
"""The widest vector steps through their heads; with others the kernels would not be used."""


@pytest.fixture(params=[1, 2])
def compute_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """The other tests here compute with one."""
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("compute_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_same_bits(config: PreTrainedConfig, dtype: torch.dtype, cpu_kernels: CpuKernels, tmp_path: Path) -> None:
    folder = save(make_reference(config), tmp_path)
    check_same_bits(folder, dtype=dtype, kv_cache_dtype=dtype, kernels=cpu_kernels)


@pytest.mark.usefixtures("compute_threads")
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_same_bits_of_quantized_weights(quantization: Quantization, cpu_kernels: CpuKernels, tmp_path: Path) -> None:
    """Rows are prepared for them, by the threads together or part by part."""
    folder = save(make_reference(CONFIGS[0]), tmp_path)
    bfloat16 = torch.bfloat16
    check_same_bits(folder, dtype=bfloat16, kv_cache_dtype=bfloat16, kernels=cpu_kernels, quantization=quantization)


def check_same_bits(folder: Path, **options: Any) -> None:
    fused, layered = (PagedModel.open(folder, is_fused=is_fused, **options) for is_fused in (True, False))
    assert fused.model.is_fused and not layered.model.is_fused
    for paged in (fused, layered):
        for _ in range(2):
            paged.add_sequence()
    # Of so many tokens as in the long prompt, each thread takes its own, in several parts.
    long_prompt = [3 + i % 50 for i in range(1100)]
    steps = [{0: range(3, 60)}, {0: [7], 1: range(9, 50)}, {0: [8], 1: [9]}, {1: [4]}, {0: [5], 1: long_prompt}]
    for step in steps:
        together, one_by_one = fused.step(step), layered.step(step)
        assert together is not None and one_by_one is not None
        assert torch.equal(together, one_by_one)
