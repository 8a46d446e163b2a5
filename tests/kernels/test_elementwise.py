"""Norms against torch."""

import pytest
import torch
import torch.nn.functional as F

from engined.kernels.cpu.library import CpuKernels

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCE)


def close(result: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[result.dtype]
    torch.testing.assert_close(result.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_add_rms_norm(kernels: CpuKernels, dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    stream, update, weight = torch.randn(rows, 48).to(dtype), torch.randn(rows, 48).to(dtype), torch.randn(48).to(dtype)
    expected_stream = stream + update
    first = kernels.add_rms_norm(stream.clone(), None, weight, 1e-5)
    close(first, F.rms_norm(stream.float(), (48,), weight.float(), 1e-5))
    normed = kernels.add_rms_norm(stream, update, weight, 1e-5)
    assert torch.equal(stream, expected_stream), "the sum is rounded as torch rounds it"
    close(normed, F.rms_norm(expected_stream.float(), (48,), weight.float(), 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 40])
def test_normalize_heads(kernels: CpuKernels, dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    heads, weight = torch.randn(rows, 5, 16).to(dtype), torch.randn(16).to(dtype)
    expected = heads.clone()
    expected[:, 1:4] = F.rms_norm(heads[:, 1:4].float(), (16,), weight.float(), 1e-5).to(dtype)
    kernels.normalize_heads(heads, 1, 4, weight, 1e-5)
    close(heads, expected)
    assert torch.equal(heads[:, [0, 4]], expected[:, [0, 4]])
