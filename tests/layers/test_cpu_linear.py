"""Every way to multiply by a dense weight on a CPU gives the numbers of a float32 product, rounded once."""

import pytest
import torch
import torch.nn.functional as F

from engined.layers import cpu_linear


@pytest.mark.parametrize("rows", [1, 2, 3, 33])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", ["multiply_float32", "multiply_emulated_bfloat16"])
def test_multiply(name: str, rows: int, has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "_TILE_WEIGHTS", 64 * 5)
    torch.manual_seed(0)
    dtype = torch.float32 if name == "multiply_float32" else torch.bfloat16
    inputs, weight = torch.randn(rows, 64, dtype=dtype), torch.randn(37, 64, dtype=dtype)
    bias = torch.randn(37, dtype=dtype) if has_bias else None
    output = getattr(cpu_linear, name)(inputs, weight, bias)
    exact = inputs.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert output.dtype == dtype
    assert output.is_contiguous()
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 1e-3}
    torch.testing.assert_close(output.double(), exact, **tolerance)


def test_choice_follows_type_and_machine() -> None:
    assert cpu_linear.choose_multiply(torch.zeros(1)) is cpu_linear.multiply_float32
    is_emulated = torch.backends.cpu.get_cpu_capability() == "AVX2"
    expected = cpu_linear.multiply_emulated_bfloat16 if is_emulated else F.linear
    assert cpu_linear.choose_multiply(torch.zeros(1, dtype=torch.bfloat16)) is expected
