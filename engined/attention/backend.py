"""What an attention backend is: a statement of what it supports, and how it attends."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engined.attention.metadata import AttentionMetadata
from engined.kernels.cpu.library import CpuKernels
from engined.layers.rotary import Rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """What the layers of one model need of a backend, as one rank sees them."""

    device: torch.device
    dtype: torch.dtype
    """Of queries, keys and values."""
    kv_cache_dtype: torch.dtype
    """int8: symmetric, with one float32 scale for each token and KV head, of keys and of values."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    sliding_window: int | None = None
    """A token sees itself and the `sliding_window - 1` tokens before it; None: all before it."""


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one layer, [num_kv_heads, num_blocks, ...] each; how a block is laid out is the backend's own
    business."""

    keys: Tensor
    values: Tensor

    def zero_blocks(self, block_ids: list[int]) -> None:
        """Overwrite whole blocks with zeros."""
        for stored in (self.keys, self.values):
            stored[:, block_ids] = 0


class AttentionBackend(ABC):
    """One way to attend over the paged cache. The layers of a model share one object; it holds no request state."""

    name: ClassVar[str]

    def __init__(self, spec: AttentionSpec, kernels: CpuKernels | None) -> None:
        """`kernels` are there for backends that want them."""
        self.spec = spec
        self.block_memory: Tensor | None = None
        """[num_blocks, bytes] uint8 where the caches of all layers lie together, block by block; set with them."""

    @classmethod
    @abstractmethod
    def refusals(cls, spec: AttentionSpec, kernels: CpuKernels | None) -> list[str]:
        """Why this backend cannot serve `spec`, one phrase a reason; empty if it can."""

    @abstractmethod
    def allocate_kv_cache(self, num_blocks: int) -> KVCache:
        """The zeroed cache of one layer."""

    def allocate_kv_caches(self, num_layers: int, num_blocks: int) -> list[KVCache]:
        """The zeroed caches of all layers."""
        return [self.allocate_kv_cache(num_blocks) for _ in range(num_layers)]

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one block of one layer, keys and values together."""
        spec = self.spec
        head_bytes = spec.head_dim * spec.kv_cache_dtype.itemsize
        if spec.kv_cache_dtype == torch.int8:
            head_bytes += torch.float32.itemsize  # the scale
        return 2 * spec.num_kv_heads * spec.block_size * head_bytes

    @abstractmethod
    def prepare(self, metadata: AttentionMetadata) -> Any:
        """What the layers of one forward need of its metadata, computed once for all of them."""

    @abstractmethod
    def forward(self, heads: Tensor, rotation: Rotation, cache: KVCache, prepared: Any) -> Tensor:
        """One layer's attention of this step: rotate queries and keys, store keys and values in their slots, attend.

        heads [num_tokens, num_heads + 2 * num_kv_heads, head_dim], contiguous: queries, keys, values; they may be
        overwritten -> [num_tokens, num_heads, head_dim]
        """
