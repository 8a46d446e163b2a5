"""Dense products on a CPU, where torch's own `F.linear` is not the fastest way. Used by `PlainWeightMethod`.

Times are of all linear layers of SmolLM2-135M in one step, on two Zen 1 cores with torch 2.13.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""inputs [rows, in_features], weight [out_features, in_features], bias [out_features] -> [rows, out_features]."""

# torch multiplies bfloat16 row by row where the CPU cannot do it. That is right for one or two rows, which only wait
# for the weights; for 32 rows of 576 by 3072 weights it takes 21.6 ms against 4.3 ms in float32 (one core, AVX2).
_MAX_DIRECT_ROWS = 2
# Weights converted at once: 1 MiB of float32, which the product reads from the CPU's cache.
_TILE_WEIGHTS = 256 << 10


def choose_multiply(weight: Tensor) -> Multiply:
    """The fastest way to multiply by `weight` on this machine."""
    if weight.device.type != "cpu":
        return F.linear
    if weight.dtype == torch.float32:
        return multiply_float32
    is_emulated = torch.backends.cpu.get_cpu_capability() == "AVX2"
    return multiply_emulated_bfloat16 if weight.dtype == torch.bfloat16 and is_emulated else F.linear


def multiply_float32(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """With the weight on the left, MKL splits the work along its long side: 42 against 141 ms for 4 rows, 166 against
    297 for 32, 1674 against 1878 for 512. One row goes twice: 38 ms against 50 for a product with one vector."""
    rows = inputs.shape[0]
    product = torch.mm(weight, (inputs if rows > 1 else inputs.repeat(2, 1)).t())
    if bias is not None:
        product += bias[:, None]
    return product.t()[:rows].contiguous()


def multiply_emulated_bfloat16(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The weight stays bfloat16 in memory; it is turned to float32 tile by tile, and sums are exact to float32."""
    if inputs.shape[0] <= _MAX_DIRECT_ROWS:
        return F.linear(inputs, weight, bias)
    columns = inputs.float().t()
    # Transposed, so that each tile of output features is a contiguous block of the result.
    product = torch.empty(weight.shape[0], inputs.shape[0], dtype=torch.float32)
    step = max(1, _TILE_WEIGHTS // weight.shape[1])
    for begin in range(0, weight.shape[0], step):
        torch.mm(weight[begin : begin + step].float(), columns, out=product[begin : begin + step])
    if bias is not None:
        product += bias[:, None]
    return product.t().to(inputs.dtype, memory_format=torch.contiguous_format)
