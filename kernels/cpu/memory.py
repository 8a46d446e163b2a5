"""Memory for packed weights, in huge pages where the system has them. Rank processes, while a model is loaded.

Reading weights is what a decode step waits for, and with pages of 4 KiB a third of that time goes to address
translation: on an Intel server with AMX, two cores read 29 GB/s from small pages and 45 GB/s from those of 2 MiB.
"""

import mmap

import torch
from torch import Tensor

_HUGE_PAGE = 2 << 20
_CHUNK = 16 * _HUGE_PAGE
_ALIGNMENT = 64
"""Bytes: a line of the cache, which a vector or a tile's row must not straddle."""


class WeightMemory:
    """Hands out pieces of large mappings, one after the other. A mapping lives as long as a tensor in it."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def allocate(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8, zeros"""
        size = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._used + size > len(self._chunk):
            self._chunk, self._used = map_huge_pages(max(_CHUNK, size)), 0
        piece = self._chunk[self._used : self._used + num_bytes]
        self._used += size
        return piece


def map_huge_pages(num_bytes: int) -> Tensor:
    """[num_bytes] uint8, zeros, whose pages the system provides when they are first written: huge ones, if it can."""
    mapping = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    everything = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -everything.data_ptr() % _HUGE_PAGE
    return everything[start : start + num_bytes]
