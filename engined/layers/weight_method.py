"""How the weights of one linear layer are held and multiplied. It knows nothing of ranks or sharding.

`PlainWeightMethod` keeps them as they are. Packed or quantized weights are further classes with this interface: they
name the tensors that they want from the checkpoint, convert them in `finish_load`, and multiply in `forward`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engined.layers.cpu_linear import choose_multiply
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
        self._multiply = choose_multiply(weight)

    @classmethod
    def create(
        cls, out_features: int, in_features: int, dtype: torch.dtype, device: torch.device
    ) -> "PlainWeightMethod":
        """A method with an unfilled weight. The loader fills all of it but the padding of a vocabulary, which no result
        depends on."""
        weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
        return cls(nn.Parameter(weight, requires_grad=False))

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
