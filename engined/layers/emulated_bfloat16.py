"""bfloat16 products on a CPU that has no instructions for them. Used by `PlainWeightMethod`."""

import torch
import torch.nn.functional as F
from torch import Tensor

# torch multiplies bfloat16 row by row where the CPU cannot do it. That is right for one or two rows, which only wait
# for the weights; for 32 rows of 576 by 3072 weights it takes 21.6 ms against 4.3 ms in float32 (one core, AVX2).
_MAX_DIRECT_ROWS = 2
# Weights converted at once: 1 MiB of float32, which the product reads from the CPU's cache.
_TILE_WEIGHTS = 256 << 10


def is_emulated(weight: Tensor) -> bool:
    """Whether `multiply` is the faster way to multiply by `weight` on this machine."""
    is_on_cpu = weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
    return is_on_cpu and torch.backends.cpu.get_cpu_capability() == "AVX2"


def multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """inputs [rows, in_features], weight [out_features, in_features], bias [out_features] -> [rows, out_features].

    The weight stays bfloat16 in memory; it is turned to float32 tile by tile, and sums are exact to float32.
    """
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
