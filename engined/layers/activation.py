"""The gate of the MLP."""

import torch.nn.functional as F
from torch import Tensor, nn


class SiluAndMul(nn.Module):
    """silu(gate) * up, for gate and up side by side: [rows, 2 * size] -> [rows, size]."""

    def forward(self, gate_and_up: Tensor) -> Tensor:
        gate, up = gate_and_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
