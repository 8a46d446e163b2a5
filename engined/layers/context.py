"""What all layers of one model are built with. Made once by `models.registry.build_model`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from engined.layers.tensor_parallel import TensorParallelGroup
from engined.layers.weight_method import WeightMethod, create_dense_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """Type, place and sharding of a model's layers, and how their weights are held."""

    dtype: torch.dtype
    device: torch.device
    tp: TensorParallelGroup
    create_weight_method: Callable[[int, int, torch.dtype, torch.device], WeightMethod] = create_dense_weight

    def create_weight(self, out_features: int, in_features: int) -> WeightMethod:
        """The weight method of one linear layer, for the sizes that this rank holds."""
        return self.create_weight_method(out_features, in_features, self.dtype, self.device)

    def create_parameter(self, *shape: int) -> nn.Parameter:
        """A parameter that the loader fills."""
        return nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.device), requires_grad=False)
