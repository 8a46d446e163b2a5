"""The gate of the MLP."""

import torch.nn.functional as F
from torch import Tensor, nn

from engined.layers.context import LayerContext


class SiluAndMul(nn.Module):
    """silu(gate) * up, for gate and up side by side: [rows, 2 * size] -> [rows, size]."""

    def __init__(self, size: int, context: LayerContext) -> None:
        super().__init__()
        self._kernels = context.kernels_for(size)

    def forward(self, gate_and_up: Tensor) -> Tensor:
        if self._kernels is not None:
            return self._kernels.silu_and_multiply(gate_and_up)
        gate, up = gate_and_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
