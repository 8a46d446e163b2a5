"""Root mean square norm (Zhang and Sennrich 2019, arXiv 1910.07467)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engined.layers.context import LayerContext
from engined.layers.tensor_spec import TensorSpec, whole


class RMSNorm(nn.Module):
    """Scales the last dimension, of `size` elements, to mean square 1 and multiplies by a weight."""

    def __init__(self, size: int, epsilon: float, context: LayerContext) -> None:
        super().__init__()
        self.size = size
        self.epsilon = epsilon
        self.weight = context.create_parameter(size)
        self._kernels = context.kernels_for(size)

    def forward(self, values: Tensor) -> Tensor:
        """[..., size] -> [..., size]. torch accumulates in float32 whatever the type."""
        return F.rms_norm(values, (self.size,), self.weight, self.epsilon)

    def add_and_norm(self, stream: Tensor, update: Tensor | None) -> Tensor:
        """Adds `update` to the residual `stream`, both [rows, size], in place; the norm of the sum, [rows, size]."""
        if self._kernels is not None:
            return self._kernels.add_rms_norm(stream, update, self.weight, self.epsilon)
        return self.forward(stream if update is None else stream.add_(update))

    def normalize_heads(self, heads: Tensor, first: int, end: int) -> Tensor:
        """The norm of each of heads [first, end) of heads [rows, num_heads, size], which may be overwritten; the others
        stay -> the same shape"""
        if self._kernels is not None:
            self._kernels.normalize_heads(heads, first, end, self.weight, self.epsilon)
            return heads
        return torch.cat((heads[:, :first], self.forward(heads[:, first:end]), heads[:, end:]), dim=1)

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the norm."""
        return [whole(f"{name}.weight", self.weight)]
