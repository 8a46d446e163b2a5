"""Memory of the KV cache on the host. Used by the CPU backends."""

import math

import numpy as np
import torch
from torch import Tensor


def untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages the kernel provides when they are first written.

    torch.zeros writes them all: measured here, 1 GiB took 2.2 s of the start, and memory that may never be used.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
