"""What all layers of one model are built with. Made once by `models.registry.build_model`."""

from dataclasses import dataclass, field

import torch
from torch import nn

from engined.config.schema import Quantization
from engined.kernels.cpu.library import CpuKernels
from engined.kernels.cpu.memory import WeightMemory
from engined.layers.dense_weight import DenseKernelWeightMethod, OneDnnWeightMethod, PlainWeightMethod
from engined.layers.quantized_weight import Int4WeightMethod, Int8WeightMethod
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
    quantization: Quantization = "none"
    """Of the weights that linear layers multiply by. Other than "none" needs bfloat16 and the kernels."""
    memory: WeightMemory = field(default_factory=WeightMemory)
    """Where the kernels' weights go."""

    def create_weight(self, out_features: int, in_features: int, *, is_gated: bool = False) -> WeightMethod:
        """The weight method of one linear layer, for the sizes that this rank holds. The loader fills all of it but the
        padding of a vocabulary, which no result depends on."""
        if self.quantization == "int4":
            assert self.kernels is not None, "the worker has refused quantization without kernels"
            return Int4WeightMethod((out_features, in_features), self.kernels, self.memory, is_gated=is_gated)
        return self.hold(self.create_parameter(out_features, in_features), is_gated=is_gated)

    def create_head(self, out_features: int, in_features: int, tied_to: nn.Parameter | None) -> WeightMethod:
        """The weight method of the output head. Its errors go straight into the logits, so it has 8 bits even where
        the other weights have 4."""
        return self.hold(self.create_parameter(out_features, in_features) if tied_to is None else tied_to)

    def hold(self, weight: nn.Parameter, *, is_gated: bool = False) -> WeightMethod:
        """The best way on this machine to hold and multiply by `weight` [out_features, in_features]."""
        if self.quantization != "none":
            assert self.kernels is not None, "the worker has refused quantization without kernels"
            return Int8WeightMethod(weight, self.kernels, self.memory, is_gated=is_gated)
        if self.kernels is not None and DenseKernelWeightMethod.supports(weight.dtype, weight.device):
            return DenseKernelWeightMethod(weight, self.kernels, self.memory, is_gated=is_gated)
        if OneDnnWeightMethod.supports(weight.dtype, weight.device):
            return OneDnnWeightMethod(weight, is_gated=is_gated)
        return PlainWeightMethod(weight, is_gated=is_gated)

    def create_parameter(self, *shape: int) -> nn.Parameter:
        """A parameter that the loader fills."""
        return nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.device), requires_grad=False)

    def kernels_for(self, size: int) -> CpuKernels | None:
        """The kernels, if they can step through `size` elements of these layers."""
        return self.kernels if self.kernels is not None and size % self.kernels.lanes == 0 else None
