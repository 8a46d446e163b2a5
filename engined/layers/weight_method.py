"""How the weights of one linear layer are held and multiplied: the interface. It knows nothing of ranks or sharding.

`dense_weight` has the methods for weights as they are. Quantized ones are further classes: they name the tensors that
they want from the checkpoint, convert them in `finish_load`, and multiply in `forward`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

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
    """The weight [out_features, in_features] of one linear layer on one rank, in whatever form.

    A gated weight holds two of them, gate above up, and its product is silu(gate) * up.
    """

    @abstractmethod
    def tensor_specs(self, part: LinearPart) -> list[TensorSpec]:
        """The tensors of the checkpoint that hold `part`."""

    def finish_load(self) -> None:
        """Called once, after every tensor is in place: the moment to pack or convert."""

    @abstractmethod
    def forward(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """inputs [rows, in_features], bias [out_features] -> [rows, out_features]; half as many columns if gated."""
