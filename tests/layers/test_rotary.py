"""Rotary embedding against the textbook rotation of pairs, in double precision."""

import math

import pytest
import torch

from engined.checkpoint.model_info import RopeScaling
from engined.layers.context import LayerContext
from engined.layers.rotary import RotaryEmbedding
from engined.layers.tensor_parallel import TensorParallelGroup

CONTEXT = LayerContext(dtype=torch.float32, device=torch.device("cpu"), tp=TensorParallelGroup())


@pytest.mark.parametrize("scaling", [None, RopeScaling(kind="linear", factor=4.0)])
def test_rotates_pairs_by_the_angle_of_the_position(scaling: RopeScaling | None) -> None:
    head_dim, theta = 8, 100.0
    torch.manual_seed(0)
    heads, positions = torch.randn(3, 2, head_dim), torch.tensor([0, 5, 100])
    rotated = RotaryEmbedding(head_dim, theta, scaling, CONTEXT)(positions).apply(heads)
    for token, position in enumerate(positions.tolist()):
        for i in range(head_dim // 2):
            angle = position * theta ** (-2 * i / head_dim) / (scaling.factor if scaling else 1)
            x, y = heads[token, :, i], heads[token, :, i + head_dim // 2]
            expected_x = x * math.cos(angle) - y * math.sin(angle)
            expected_y = y * math.cos(angle) + x * math.sin(angle)
            torch.testing.assert_close(rotated[token, :, i], expected_x, rtol=0, atol=1e-5)
            torch.testing.assert_close(rotated[token, :, i + head_dim // 2], expected_y, rtol=0, atol=1e-5)
