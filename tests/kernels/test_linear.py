"""Products against double precision, at odd sizes, and their bits against those of other numbers of rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engined.kernels.cpu.library import CpuKernels, PackedLinear
from engined.kernels.cpu.memory import WeightMemory

SHAPES = [(96, 64), (1, 1), (33, 7), (130, 300), (16, 1025), (257, 48)]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-8}


def pack(kernels: CpuKernels, weight: Tensor, is_gated: bool = False) -> PackedLinear:
    return kernels.pack_linear(weight, WeightMemory(), is_gated)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 17, 33, 100, 201])
def test_product(kernels: CpuKernels, dtype: torch.dtype, shape: tuple[int, int], rows: int) -> None:
    torch.manual_seed(rows)
    weight, inputs = torch.randn(shape).to(dtype), torch.randn(rows, shape[1]).to(dtype)
    packed = pack(kernels, weight)
    for bias in (None, torch.randn(shape[0]).to(dtype)):
        exact = inputs.double() @ weight.double().t() + (0 if bias is None else bias.double())
        result = kernels.linear(inputs, packed, bias)
        assert result.dtype == dtype
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance * shape[1] ** 0.5)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("shape", [(96, 64), (2, 1), (66, 7), (130, 300)])
@pytest.mark.parametrize("rows", [1, 5, 13, 20, 70])
def test_gated_product(kernels: CpuKernels, dtype: torch.dtype, shape: tuple[int, int], rows: int) -> None:
    torch.manual_seed(rows)
    weight, inputs = (torch.randn(shape) / 4).to(dtype), torch.randn(rows, shape[1]).to(dtype)
    packed = pack(kernels, weight, is_gated=True)
    for bias in (None, torch.randn(shape[0]).to(dtype)):
        both = inputs.double() @ weight.double().t() + (0 if bias is None else bias.double())
        gate, up = both.chunk(2, dim=-1)
        result = kernels.linear(inputs, packed, bias)
        assert result.shape == (rows, shape[0] // 2)
        tolerance = TOLERANCES[dtype] * 2
        torch.testing.assert_close(result.double(), F.silu(gate) * up, rtol=tolerance, atol=tolerance * shape[1])


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("is_gated", [False, True])
def test_bits_do_not_depend_on_the_number_of_rows(kernels: CpuKernels, dtype: torch.dtype, is_gated: bool) -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(144, 600).to(dtype), torch.randn(300, 600).to(dtype)
    packed = pack(kernels, weight, is_gated)
    whole = kernels.linear(inputs, packed, None)
    for rows in (1, 2, 3, 6, 8, 11, 12, 16, 17, 31, 32, 33, 64, 97, 256):
        assert torch.equal(kernels.linear(inputs[:rows], packed, None), whole[:rows])
        assert torch.equal(kernels.linear(inputs[-rows:], packed, None), whole[-rows:])


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_neither_do_those_of_tiny_and_huge_numbers(kernels: CpuKernels, dtype: torch.dtype) -> None:
    """Instructions differ in what they make of numbers below 2^-126: here single ones, and whole rows of them."""
    torch.manual_seed(0)
    exponents = torch.randint(-140, 60, (40, 96))
    exponents[::2] = torch.randint(-134, -122, (20, 96))
    inputs = torch.ldexp(torch.randn(40, 96), exponents).to(dtype)
    weight = torch.ldexp(torch.randn(64, 96), torch.randint(-10, 20, (64, 96))).to(dtype)
    packed = pack(kernels, weight)
    whole = kernels.linear(inputs, packed, None)
    assert whole.isfinite().all()
    for rows in (1, 2, 3):
        for first in range(40 - rows):
            some = slice(first, first + rows)
            assert torch.equal(kernels.linear(inputs[some], packed, None), whole[some])


def test_what_is_not_finite_stays_in_its_row(kernels: CpuKernels) -> None:
    inputs = torch.ones(3, 20)
    inputs[1, 4] = torch.nan
    for dtype in (torch.float32, torch.bfloat16):
        packed = pack(kernels, torch.ones(40, 20, dtype=dtype))
        result = kernels.linear(inputs.to(dtype), packed, None)
        assert result[1].isnan().all()
        assert (result[[0, 2]] == 20).all()


def test_gates_of_extreme_values(kernels: CpuKernels) -> None:
    gates = torch.tensor([-1e30, -200.0, -88.5, -0.0, 0.0, 88.5, 200.0, 1e30, torch.nan])
    packed = pack(kernels, torch.zeros(2 * len(gates), 1), is_gated=True)
    result = kernels.linear(torch.zeros(1, 1), packed, torch.cat((gates, torch.ones(len(gates)))))[0]
    assert result[0].abs() < 1e-6
    torch.testing.assert_close(result[1:8], F.silu(gates[1:8]), rtol=1e-5, atol=1e-6)
    assert result[8].isnan()
