"""bfloat16 weights multiplied in float32 tiles: the numbers of a float32 product, rounded once."""

import pytest
import torch

from engined.layers import emulated_bfloat16


@pytest.mark.parametrize("rows", [1, 2, 3, 33])
@pytest.mark.parametrize("has_bias", [False, True])
def test_multiply(rows: int, has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated_bfloat16, "_TILE_WEIGHTS", 64 * 5)
    torch.manual_seed(0)
    inputs, weight = torch.randn(rows, 64).bfloat16(), torch.randn(37, 64).bfloat16()
    bias = torch.randn(37).bfloat16() if has_bias else None
    output = emulated_bfloat16.multiply(inputs, weight, bias)
    exact = inputs.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert output.dtype == torch.bfloat16
    assert output.is_contiguous()
    torch.testing.assert_close(output.double(), exact, rtol=2**-7, atol=1e-3)


def test_only_bfloat16_is_emulated() -> None:
    assert not emulated_bfloat16.is_emulated(torch.zeros(1))
    has_no_bfloat16 = torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert emulated_bfloat16.is_emulated(torch.zeros(1, dtype=torch.bfloat16)) == has_no_bfloat16
