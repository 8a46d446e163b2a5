"""A forward as one call against the same kernels called layer by layer: the same bits."""

from pathlib import Path

import pytest
import torch

from engined.kernels.cpu.library import CpuKernels
from tests.models.families import make_reference, save
from tests.models.paged import PagedModel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", ["llama-biases", "qwen3", "mistral-window"])
def test_same_bits(variant: str, dtype: torch.dtype, cpu_kernels: CpuKernels, tmp_path: Path) -> None:
    folder = save(make_reference(variant), tmp_path)
    fused, layered = (PagedModel.open(folder, dtype=dtype, kv_cache_dtype=dtype, kernels=cpu_kernels) for _ in range(2))
    layered.model.computes_layer_by_layer = True
    for paged in (fused, layered):
        for _ in range(2):
            paged.add_sequence()
    for step in ({0: range(3, 60)}, {0: [7], 1: range(9, 50)}, {0: [8], 1: [9]}):
        together, one_by_one = fused.step(step), layered.step(step)
        assert together is not None and one_by_one is not None
        assert torch.equal(together, one_by_one)
