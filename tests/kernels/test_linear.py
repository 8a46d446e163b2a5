"""Products against double precision, at odd sizes, and their bits against those of other numbers of rows."""

import pytest
import torch

from engined.kernels.cpu.library import CpuKernels

SHAPES = [(96, 64), (1, 1), (33, 7), (130, 300), (16, 1025), (257, 48)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 100, 201])
def test_product(kernels: CpuKernels, dtype: torch.dtype, shape: tuple[int, int], rows: int) -> None:
    torch.manual_seed(rows)
    weight, inputs = torch.randn(shape).to(dtype), torch.randn(rows, shape[1]).to(dtype)
    packed = kernels.pack_linear(weight)
    for bias in (None, torch.randn(shape[0]).to(dtype)):
        exact = inputs.double() @ weight.double().t() + (0 if bias is None else bias.double())
        result = kernels.linear(inputs, packed, shape[0], bias)
        assert result.dtype == dtype
        tolerance = 1e-5 if dtype == torch.float32 else 2**-8
        torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance * shape[1] ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_the_number_of_rows(kernels: CpuKernels, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(144, 600).to(dtype), torch.randn(300, 600).to(dtype)
    packed = kernels.pack_linear(weight)
    whole = kernels.linear(inputs, packed, 144, None)
    for rows in (1, 2, 3, 6, 8, 11, 12, 31, 64, 97, 256):
        assert torch.equal(kernels.linear(inputs[:rows], packed, 144, None), whole[:rows])
        assert torch.equal(kernels.linear(inputs[-rows:], packed, 144, None), whole[-rows:])


def test_what_is_not_finite_stays_in_its_row(kernels: CpuKernels) -> None:
    inputs = torch.ones(3, 20)
    inputs[1, 4] = torch.nan
    for dtype in (torch.float32, torch.bfloat16):
        packed = kernels.pack_linear(torch.ones(40, 20, dtype=dtype))
        result = kernels.linear(inputs.to(dtype), packed, 40, None)
        assert result[1].isnan().all()
        assert (result[[0, 2]] == 20).all()
