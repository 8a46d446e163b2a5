"""How the weights of one linear layer are held and multiplied. It knows nothing of ranks or sharding.

`PlainWeightMethod` keeps them as they are. Packed or quantized weights are further classes with this interface: they
name the tensors that they want from the checkpoint, convert them in `finish_load`, and multiply in `forward`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engined.layers import emulated_bfloat16
from engined.layers.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPart:
    """One projection of the checkpoint, and where the wanted part of it goes in the weight of the layer."""

    name: str
    """Without the ending, for example "model.layers.0.mlp.up_proj"."""
    shape: tuple[int, int]
    """(out_features, in_features) of the whole projection."""
    rows: slice
    """Output features wanted of it."""
    columns: slice
    """Input features wanted of it."""
    first_row: int
    """Where its rows begin in this layer's weight."""


class WeightMethod(nn.Module, ABC):
    """The weight [out_features, in_features] of one linear layer on one rank, in whatever form."""

    @abstractmethod
    def tensor_specs(self, part: LinearPart) -> list[TensorSpec]:
        """The tensors of the checkpoint that hold `part`."""

    def finish_load(self) -> None:
        """Called once, after every tensor is in place: the moment to pack or convert."""

    @abstractmethod
    def forward(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """inputs [rows, in_features], bias [out_features] -> [rows, out_features]."""


class PlainWeightMethod(WeightMethod):
    """A dense weight, multiplied by torch. Inputs have the type of the weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        """`weight` [out_features, in_features] is kept, not copied; a tied head passes the embedding's."""
        super().__init__()
        self.weight = weight
        self._multiply = emulated_bfloat16.multiply if emulated_bfloat16.is_emulated(weight) else F.linear

    def tensor_specs(self, part: LinearPart) -> list[TensorSpec]:
        end_row = part.first_row + part.rows.stop - part.rows.start
        return [
            TensorSpec(
                name=f"{part.name}.weight",
                shape=part.shape,
                slices=(part.rows, part.columns),
                destination=self.weight[part.first_row : end_row],
            )
        ]

    def forward(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        return self._multiply(inputs, self.weight, bias)


class PackedWeightMethod(PlainWeightMethod):
    """A dense weight in the blocked layout of oneDNN, which is made once, after loading; the plain one is let go.

    A row of its result has the same bits whatever the number of rows, which MKL's products have not: so a request gets
    the same logits alone and in a batch (seen with AVX2). It is faster too: all layers of SmolLM2-135M, in float32 on
    two Zen 1 cores, take 155 ms for 32 rows and 41 for one, with `F.linear` 297 and 50.
    """

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__(weight)
        self._packed: Tensor | None = None

    @staticmethod
    def supports(dtype: torch.dtype, device: torch.device) -> bool:
        """Whether this machine's oneDNN multiplies weights of `dtype` on `device`."""
        if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return False
        return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def finish_load(self) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        del self.weight

    def forward(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        assert self._packed is not None, "finish_load packs the weight"
        output: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._packed, bias, "none", [], "")
        return output


def choose_weight_method(weight: nn.Parameter) -> WeightMethod:
    """The best way on this machine to hold and multiply by `weight` [out_features, in_features]."""
    method = PackedWeightMethod if PackedWeightMethod.supports(weight.dtype, weight.device) else PlainWeightMethod
    return method(weight)


def create_dense_weight(out_features: int, in_features: int, dtype: torch.dtype, device: torch.device) -> WeightMethod:
    """A method with an unfilled weight. The loader fills all of it but the padding of a vocabulary, which no result
    depends on."""
    weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
    return choose_weight_method(nn.Parameter(weight, requires_grad=False))
