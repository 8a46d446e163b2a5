"""Layer norm (Ba, Kiros and Hinton 2016, arXiv 1607.06450), which the BERT family uses."""

import torch.nn.functional as F
from torch import Tensor, nn

from engined.layers.context import LayerContext
from engined.layers.tensor_spec import TensorSpec, whole


class LayerNorm(nn.Module):
    """Brings the last dimension, of `size` elements, to mean 0 and variance 1, then scales and shifts it."""

    def __init__(self, size: int, epsilon: float, context: LayerContext) -> None:
        super().__init__()
        self.size = size
        self.epsilon = epsilon
        self.weight = context.create_parameter(size)
        self.bias = context.create_parameter(size)

    def forward(self, values: Tensor) -> Tensor:
        """[..., size] -> [..., size]. torch accumulates in float32 whatever the type."""
        return F.layer_norm(values, (self.size,), self.weight, self.bias, self.epsilon)

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the norm."""
        return [whole(f"{name}.weight", self.weight), whole(f"{name}.bias", self.bias)]
