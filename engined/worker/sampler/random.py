"""The random stream of sampling: one uniform number for each (seed, position), whatever else is in the batch."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that avalanches."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one for each seed [N] and position [N] of a sequence.

    The seed is mixed before the position is added, so that neighbouring seeds have unrelated streams.
    """
    state = _mix(seeds + _GOLDEN_GAMMA) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53
