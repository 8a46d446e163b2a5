"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in Hugging Face's order: two halves that pair up."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engined.checkpoint.model_info import RopeScaling
from engined.checkpoint.rope import frequency_factors
from engined.layers.context import LayerContext


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles of the tokens of one forward."""

    angles: Tensor
    """[num_tokens, head_dim] in float32: cosines of half a head, then sines."""

    def apply(self, heads: Tensor) -> Tensor:
        """heads [num_tokens, num_heads, head_dim] -> the same, rotated."""
        cosines, sines = self.angles[:, None].to(heads.dtype).chunk(2, dim=-1)
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


class RotaryEmbedding(nn.Module):
    """Angles of positions. A model calls it once a forward and hands the result to all its layers."""

    inverse_frequencies: Tensor

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling | None, context: LayerContext) -> None:
        super().__init__()
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequencies = 1.0 / theta**exponents
        if scaling is not None:
            frequencies /= torch.tensor(frequency_factors(scaling, head_dim, theta))
        self.register_buffer("inverse_frequencies", frequencies.to(context.device), persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """positions [num_tokens]"""
        angles = positions.float()[:, None] * self.inverse_frequencies
        return Rotation(torch.cat((angles.cos(), angles.sin()), -1))
