"""Norm and gate against torch."""

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
def test_silu_and_multiply(kernels: CpuKernels, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for rows in (1, 40):
        both = (torch.randn(rows, 96) * 8).to(dtype)
        gate, up = both.float().chunk(2, -1)
        close(kernels.silu_and_multiply(both), F.silu(gate) * up)


def test_silu_of_extremes(kernels: CpuKernels) -> None:
    gates = torch.tensor(
        [-torch.inf, -1e30, -200.0, -88.5, -0.0, 0.0, 88.5, 200.0, 1e30, torch.inf, torch.nan] + [1.0] * 5
    )
    result = kernels.silu_and_multiply(torch.cat((gates, torch.ones(16)))[None])[0]
    assert result[1:4].abs().max() < 1e-6
    torch.testing.assert_close(result[2:9], F.silu(gates[2:9]), rtol=1e-5, atol=1e-6)
    assert result[10].isnan()
