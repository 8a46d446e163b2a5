"""Products by weights of 8 and 4 bits, against double precision of the rounded weights, and their bits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engined.kernels.cpu.library import INT4_BLOCK_BYTES, CpuKernels, PackedLinear, int4_blocks
from engined.kernels.cpu.memory import WeightMemory

FORMATS = ["int8", "int4"]
# (rows of the weight, inputs): odd ones, less than a panel and a group, groups that are cut, several panels of both.
SHAPES = [(96, 64), (2, 1), (34, 7), (130, 300), (18, 1025), (258, 96)]


def values_of(blocks: Tensor, in_features: int) -> Tensor:
    """The weights [rows, in_features] that blocks of 4 bits stand for, float32."""
    factors = blocks[:, :, :4].contiguous().view(torch.float16).float()
    numbers = torch.cat((blocks[:, :, 4:] & 15, blocks[:, :, 4:] >> 4), dim=2).float()
    return (numbers * factors[:, :, :1] + factors[:, :, 1:]).flatten(1)[:, :in_features]


def pack(
    kernels: CpuKernels, weight: Tensor, quantization: str, *, is_gated: bool = False
) -> tuple[PackedLinear, Tensor]:
    """The packed weight, and the plain one that it stands for."""
    memory = WeightMemory()
    if quantization == "int8":
        return kernels.pack_int8(weight, memory, is_gated), weight
    rows, in_features = weight.shape
    blocks = torch.empty(rows, int4_blocks(in_features), INT4_BLOCK_BYTES, dtype=torch.uint8)
    kernels.quantize_blocks(weight, blocks)
    return kernels.pack_int4(blocks, in_features, memory, is_gated), values_of(blocks, in_features)


def relative_error(result: Tensor, exact: Tensor) -> float:
    return ((result.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("quantization", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 33, 200])
def test_product(kernels: CpuKernels, quantization: str, shape: tuple[int, int], rows: int) -> None:
    torch.manual_seed(rows)
    weight, inputs = torch.randn(shape).bfloat16(), torch.randn(rows, shape[1]).bfloat16()
    packed, plain = pack(kernels, weight, quantization)
    for bias in (None, torch.randn(shape[0]).bfloat16()):
        exact = inputs.double() @ plain.double().t() + (0 if bias is None else bias.double())
        result = kernels.linear(inputs, packed, bias)
        assert result.dtype == torch.bfloat16
        assert relative_error(result, exact) < 0.02


@pytest.mark.parametrize("quantization", FORMATS)
@pytest.mark.parametrize("columns", [16, 17, 75])
@pytest.mark.parametrize("rows", [1, 16, 40])
def test_gated_product(kernels: CpuKernels, quantization: str, columns: int, rows: int) -> None:
    torch.manual_seed(rows)
    weight, inputs = torch.randn(2 * columns, 130).bfloat16() / 8, torch.randn(rows, 130).bfloat16()
    packed, plain = pack(kernels, weight, quantization, is_gated=True)
    bias = torch.randn(2 * columns).bfloat16()
    gate, up = (inputs.double() @ plain.double().t() + bias.double()).chunk(2, dim=1)
    assert relative_error(kernels.linear(inputs, packed, bias), F.silu(gate) * up) < 0.04


def test_sums_of_8_bits_are_exact(kernels: CpuKernels) -> None:
    """What is rotated into integers up to 127, of which each row has one, is kept: so only the result is rounded."""
    torch.manual_seed(0)
    rotation = torch.ones(1, 1, dtype=torch.int64)
    while len(rotation) < 256:
        rotation = torch.cat((torch.cat((rotation, rotation), 1), torch.cat((rotation, -rotation), 1)))
    numbers = torch.zeros(68, 256, dtype=torch.int64)
    # So few and small that all sums of them are integers of bfloat16.
    numbers[:, ::8] = torch.randint(-4, 5, (68, 32))
    numbers[:, 5] = 127
    weight, inputs = (numbers @ rotation).split((48, 20))
    packed, _ = pack(kernels, weight.bfloat16(), "int8")
    assert torch.equal(kernels.linear(inputs.bfloat16(), packed, None), (inputs @ weight.t()).bfloat16())


def test_numbers_of_4_bits_are_kept(kernels: CpuKernels) -> None:
    torch.manual_seed(0)
    weight = torch.randint(-8, 8, (48, 96))
    weight[:, ::32], weight[:, 1::32] = -8, 7
    blocks = torch.empty(48, 3, INT4_BLOCK_BYTES, dtype=torch.uint8)
    kernels.quantize_blocks(weight.bfloat16(), blocks)
    assert torch.equal(values_of(blocks, 96), weight.float())


@pytest.mark.parametrize("quantization", FORMATS)
def test_bits_do_not_depend_on_the_number_of_rows(kernels: CpuKernels, quantization: str) -> None:
    torch.manual_seed(0)
    packed, _ = pack(kernels, torch.randn(144, 600).bfloat16(), quantization)
    inputs = torch.randn(200, 600).bfloat16()
    whole = kernels.linear(inputs, packed, None)
    for rows in (1, 2, 3, 6, 8, 15, 16, 17, 31, 33, 64, 97):
        assert torch.equal(kernels.linear(inputs[:rows], packed, None), whole[:rows])
        assert torch.equal(kernels.linear(inputs[-rows:], packed, None), whole[-rows:])


@pytest.mark.parametrize("quantization", FORMATS)
def test_what_is_not_finite_stays_in_its_row(kernels: CpuKernels, quantization: str) -> None:
    packed, plain = pack(kernels, torch.ones(40, 100).bfloat16(), quantization)
    inputs = torch.ones(4, 100).bfloat16()
    inputs[1, 4], inputs[2, 99] = torch.nan, -torch.inf
    result = kernels.linear(inputs, packed, None)
    assert result[1:3].isnan().all()
    torch.testing.assert_close(result[[0, 3]], torch.full((2, 40), 100.0).bfloat16(), rtol=0.01, atol=0)


@pytest.mark.parametrize("quantization", FORMATS)
def test_zeros(kernels: CpuKernels, quantization: str) -> None:
    packed, _ = pack(kernels, torch.zeros(20, 70).bfloat16(), quantization)
    assert not kernels.linear(torch.randn(3, 70).bfloat16(), packed, None).any()
    packed, _ = pack(kernels, torch.randn(20, 70).bfloat16(), quantization)
    assert not kernels.linear(torch.zeros(3, 70).bfloat16(), packed, None).any()
