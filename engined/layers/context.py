"""What all layers of one model are built with. Made once by `models.registry.build_model`."""

from dataclasses import dataclass

import torch
from torch import nn

from engined.kernels.cpu.library import CpuKernels
from engined.layers.dense_weight import choose_weight_method
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.layers.weight_method import WeightMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """Type, place and sharding of a model's layers, and the kernels that they may use."""

    dtype: torch.dtype
    device: torch.device
    tp: TensorParallelGroup
    kernels: CpuKernels | None = None
    """None: plain torch."""

    def create_weight(self, out_features: int, in_features: int) -> WeightMethod:
        """The weight method of one linear layer, for the sizes that this rank holds. The loader fills all of it but the
        padding of a vocabulary, which no result depends on."""
        return choose_weight_method(self.create_parameter(out_features, in_features), self.kernels)

    def create_parameter(self, *shape: int) -> nn.Parameter:
        """A parameter that the loader fills."""
        return nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.device), requires_grad=False)

    def kernels_for(self, size: int) -> CpuKernels | None:
        """The kernels, if they can step through `size` elements of these layers."""
        return self.kernels if self.kernels is not None and size % self.kernels.lanes == 0 else None
