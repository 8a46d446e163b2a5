"""A forward as one call against the same kernels called layer by layer: the same bits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config

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
    fused, layered = (
        PagedModel.open(folder, dtype=dtype, kv_cache_dtype=dtype, kernels=cpu_kernels, is_fused=is_fused)
        for is_fused in (True, False)
    )
    assert fused.model.is_fused and not layered.model.is_fused
    for paged in (fused, layered):
        for _ in range(2):
            paged.add_sequence()
    # So many tokens the threads of the fused one share out, and each takes its own in several parts.
    long_prompt = [3 + i % 50 for i in range(1100)]
    for step in ({0: range(3, 60)}, {0: [7], 1: range(9, 50)}, {0: [8], 1: [9]}, {0: [5], 1: long_prompt}):
        together, one_by_one = fused.step(step), layered.step(step)
        assert together is not None and one_by_one is not None
        assert torch.equal(together, one_by_one)
