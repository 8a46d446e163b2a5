"""Scaling of rotary frequencies, as plain numbers. GGUF config reader and rotary layer; no torch, no numpy.

Methods: linear is position interpolation (Chen et al. 2023, arXiv 2306.15595); llama3 stretches long waves only, as in
Meta's Llama 3.1 reference code.
"""

import math

from engined.checkpoint.model_info import RopeScaling


def frequency_factors(scaling: RopeScaling, head_dim: int, theta: float) -> list[float]:
    """By how much the scaling divides each of the `head_dim / 2` frequencies `theta ** (-2 * i / head_dim)`.

    llama3: 1 for short waves, `factor` for long ones, a blend between them.
    """
    if scaling.kind == "linear":
        return [scaling.factor] * (head_dim // 2)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    factors = []
    for i in range(head_dim // 2):
        frequency = theta ** (-2 * i / head_dim)
        turns = scaling.original_max_position * frequency / (2 * math.pi)
        if turns < low:
            factors.append(scaling.factor)
        elif turns > high:
            factors.append(1.0)
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return factors
