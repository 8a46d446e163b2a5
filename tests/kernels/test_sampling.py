"""Tokens drawn by the kernel against torch's argmax and softmax."""

import numpy as np
import pytest
import torch

from engined.kernels.cpu.library import CpuKernels
from engined.worker.sampler.metadata import SamplingMetadata
from engined.worker.sampler.sampler import sample

SIZES = [1, 7, 16, 1000, 1024, 1025, 49152]


def draw(kernels: CpuKernels, logits: torch.Tensor, temperature: float, uniform: list[float]) -> list[int]:
    rows = torch.full((len(logits),), temperature)
    return kernels.sample(logits, rows, torch.tensor(uniform, dtype=torch.float64))[0].tolist()


@pytest.mark.parametrize("size", SIZES)
def test_largest_and_the_first_of_equals(kernels: CpuKernels, size: int) -> None:
    logits = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    logits[3, size // 2 :] = logits[3, size // 2] = 9.0
    assert draw(kernels, logits, 0.0, [0.5] * 5) == [
        *logits[:3].argmax(-1).tolist(),
        size // 2,
        int(logits[4].argmax()),
    ]
    # Rows of a wider table, as the logits of a padded vocabulary are.
    wide = torch.full((5, size + 3), 99.0)
    wide[:, :size] = logits
    assert draw(kernels, wide[:, :size], 0.0, [0.5] * 5) == draw(kernels, logits, 0.0, [0.5] * 5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_draws_are_where_the_cumulated_probability_passes(kernels: CpuKernels, size: int, temperature: float) -> None:
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(size)) * 3
    cumulated = (logits[0].double() / temperature).softmax(-1).cumsum(-1).numpy()
    for uniform in np.linspace(0, 0.999, 23):
        token = draw(kernels, logits, temperature, [uniform])[0]
        before = cumulated[token - 1] if token else 0.0
        assert before - 1e-5 <= uniform <= cumulated[token] + 1e-5


def test_never_a_token_that_is_ruled_out(kernels: CpuKernels) -> None:
    logits = torch.full((1, 5000), -torch.inf)
    logits[0, [17, 1024, 4999]] = torch.tensor([0.0, 0.0, 0.0])
    tokens = [draw(kernels, logits, 1.0, [uniform])[0] for uniform in (0.0, 0.3, 0.4, 0.6, 0.7, 1 - 2**-53)]
    assert tokens == [17, 17, 1024, 1024, 4999, 4999]


def test_rows_do_not_depend_on_each_other(kernels: CpuKernels) -> None:
    logits = torch.randn(9, 2000, generator=torch.Generator().manual_seed(0))
    uniform = torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).tolist()
    alone = [draw(kernels, logits[i : i + 1], 1.0, [uniform[i]])[0] for i in range(9)]
    assert draw(kernels, logits, 1.0, uniform) == alone


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_bfloat16_as_the_same_numbers_in_float32(kernels: CpuKernels, size: int, temperature: float) -> None:
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(size)).bfloat16()
    uniform = [0.0, 0.2, 0.4, 0.6, 0.8, 0.99]
    assert draw(kernels, logits, temperature, uniform) == draw(kernels, logits.float(), temperature, uniform)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_gets_some_token_and_is_said(kernels: CpuKernels, dtype: torch.dtype) -> None:
    logits = torch.zeros(4, 40, dtype=dtype)
    logits[0, 5], logits[1, 6], logits[2], logits[3, 7] = torch.nan, torch.inf, -torch.inf, -torch.inf
    tokens, is_finite = kernels.sample(logits, torch.ones(4), torch.full((4,), 0.9, dtype=torch.float64))
    assert all(0 <= token < 40 for token in tokens.tolist())
    assert is_finite.tolist() == [False, False, False, True]


def test_plain_rows_get_the_tokens_that_torch_would_give_them(kernels: CpuKernels) -> None:
    logits = (torch.randn(40, 3000, generator=torch.Generator().manual_seed(0)) * 3).bfloat16()
    logits[7, 9] = torch.nan
    metadata = SamplingMetadata(
        details=None,
        temperature=torch.tensor([0.0, 0.7, 1.0, 1.5]).repeat(10),
        seeds=np.arange(40, dtype=np.uint64),
        num_output_tokens=np.arange(40, dtype=np.int64),
    )
    by_kernel, by_torch = sample(logits, metadata, kernels=kernels), sample(logits, metadata)
    assert by_kernel.is_finite.tolist() == by_torch.is_finite.tolist() == [row != 7 for row in range(40)]
    finite = by_torch.is_finite
    assert torch.equal(by_kernel.token_ids[finite], by_torch.token_ids[finite])
