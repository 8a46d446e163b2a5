"""Weights packed by oneDNN: the right numbers, and for each row the same bits whatever the number of rows."""

import pytest
import torch
from torch import nn

from engined.layers.dense_weight import OneDnnWeightMethod, padded_rows

# Which kernel oneDNN picks for how many rows is known for AVX2 machines only.
IS_KNOWN = torch.backends.cpu.get_cpu_capability() == "AVX2"
SAME = {"rtol": 0.0, "atol": 0.0} if IS_KNOWN else {"rtol": 1e-6, "atol": 1e-5}


@pytest.fixture
def method() -> OneDnnWeightMethod:
    torch.manual_seed(0)
    return OneDnnWeightMethod(nn.Parameter(torch.randn(96, 160), requires_grad=False))


@pytest.mark.parametrize("has_bias", [False, True])
def test_product(method: OneDnnWeightMethod, has_bias: bool) -> None:
    weight = method.weight.double()
    inputs, bias = torch.randn(7, 160), torch.randn(96) if has_bias else None
    exact = inputs.double() @ weight.t() + (0 if bias is None else bias.double())
    method.finish_load()
    torch.testing.assert_close(method(inputs, bias).double(), exact, rtol=1e-5, atol=1e-4)


def test_bits_do_not_depend_on_the_number_of_rows(method: OneDnnWeightMethod) -> None:
    method.finish_load()
    inputs = torch.randn(300, 160)
    whole = method(inputs, None)
    for rows in (1, 2, 3, 8, 16, 31, 64, 129, 256):
        torch.testing.assert_close(method(inputs[:rows], None), whole[:rows], **SAME)
        torch.testing.assert_close(method(inputs[-rows:], None), whole[-rows:], **SAME)


def test_one_dnn_meets_few_numbers_of_rows() -> None:
    """It keeps compiled code for each of them for ever."""
    padded = {rows: padded_rows(rows) for rows in range(1, 8193)}
    assert all(rows <= count <= max(rows * 9 / 8, rows + 15) for rows, count in padded.items())
    assert len(set(padded.values())) < 80
    assert all(padded_rows(count) == count for count in padded.values())


def test_the_plain_weight_is_let_go(method: OneDnnWeightMethod) -> None:
    method.finish_load()
    assert list(method.parameters()) == []
    assert not hasattr(method, "weight")


def test_only_what_one_dnn_multiplies() -> None:
    assert OneDnnWeightMethod.supports(torch.float32, torch.device("cpu"))
    assert not OneDnnWeightMethod.supports(torch.float16, torch.device("cpu"))
    assert not OneDnnWeightMethod.supports(torch.float32, torch.device("cuda"))
