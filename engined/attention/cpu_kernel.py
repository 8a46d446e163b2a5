"""Attention on a CPU by our own kernel, which reads the paged cache in place: `kernels/cpu/source/attention.cpp`."""

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engined.attention.backend import AttentionBackend, AttentionSpec, KVCache
from engined.attention.host_memory import untouched_zeros
from engined.attention.metadata import AttentionMetadata
from engined.kernels.cpu.library import DTYPES, ELEMENT_TYPES, AttentionBatch, AttentionShape, CpuKernels
from engined.layers.rotary import Rotation


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """The metadata of one forward as the kernel reads it."""

    batch: AttentionBatch
    tensors: tuple[Tensor, ...]
    """What `batch` points to."""


class CpuKernelAttention(AttentionBackend):
    """Decodes and prefills in any mix and of any length, with or without a window.

    The cache is [num_blocks, num_kv_heads, 2, bytes], keys then values: a random block is the better to read the more
    of it lies together. What the bytes are is the kernel's business. Sums are float32, and the result of a query has
    the same bits in any batch and any chunk.
    """

    name = "cpu_kernel"

    def __init__(self, spec: AttentionSpec, kernels: CpuKernels | None) -> None:
        super().__init__(spec, kernels)
        assert kernels is not None
        self._block_bytes, self._attention = kernels.attention()

    @classmethod
    def refusals(cls, spec: AttentionSpec, kernels: CpuKernels | None) -> list[str]:
        if kernels is None:
            return ["the CPU kernels are not built"]
        reasons = []
        if spec.device.type != "cpu":
            reasons.append(f"device {spec.device.type} (only cpu)")
        if spec.dtype not in DTYPES:
            reasons.append(f"dtype {spec.dtype} (only float32 and bfloat16)")
        if spec.kv_cache_dtype not in ELEMENT_TYPES:
            reasons.append(f"KV cache dtype {spec.kv_cache_dtype} (only float32, bfloat16 and int8)")
        for what, size in (("head size", spec.head_dim), ("block size", spec.block_size)):
            if size % kernels.lanes:
                reasons.append(f"{what} {size} is not a multiple of {kernels.lanes}")
        if spec.num_heads % spec.num_kv_heads:
            reasons.append(f"{spec.num_heads} query heads do not share {spec.num_kv_heads} KV heads evenly")
        return reasons

    def allocate_kv_cache(self, num_blocks: int) -> KVCache:
        return self.allocate_kv_caches(1, num_blocks)[0]

    def allocate_kv_caches(self, num_layers: int, num_blocks: int) -> list[KVCache]:
        """A block of all layers lies together: so memory is touched block by block, not by a huge page a layer."""
        block_bytes = self._block_bytes(ctypes.byref(self._shape(0, 0)))
        memory = untouched_zeros((num_blocks, num_layers, self.spec.num_kv_heads, 2, block_bytes), torch.uint8)
        self.block_memory = memory.view(num_blocks, -1)
        return [KVCache(*layer.transpose(0, 1).unbind(2)) for layer in memory.unbind(1)]

    def prepare(self, metadata: AttentionMetadata) -> PreparedBatch:
        tensors = (
            metadata.query_start_loc.contiguous(),
            metadata.seq_lens.contiguous(),
            metadata.slot_mapping.contiguous(),
            metadata.block_table.contiguous(),
        )
        num_requests, table_width = metadata.block_table.shape
        addresses = (tensor.data_ptr() for tensor in tensors)
        return PreparedBatch(AttentionBatch(*addresses, table_width, num_requests), tensors)

    def forward(self, heads: Tensor, rotation: Rotation, cache: KVCache, prepared: PreparedBatch) -> Tensor:
        assert heads.is_contiguous()
        output = heads.new_empty(heads.shape[0], self.spec.num_heads, self.spec.head_dim)
        self._attention(
            ctypes.byref(self.shape(cache)),
            ctypes.byref(prepared.batch),
            heads.data_ptr(),
            rotation.angles.data_ptr(),
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            output.data_ptr(),
        )
        return output

    def shape(self, cache: KVCache) -> AttentionShape:
        """What the kernel must know of a layer, given its cache."""
        head_stride, block_stride, _ = cache.keys.stride()
        return self._shape(block_stride, head_stride)

    def _shape(self, block_stride: int, head_stride: int) -> AttentionShape:
        spec = self.spec
        return AttentionShape(
            ELEMENT_TYPES[spec.dtype],
            ELEMENT_TYPES[spec.kv_cache_dtype],
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.block_size,
            block_stride,
            head_stride,
            spec.sliding_window or 0,
            1 / math.sqrt(spec.head_dim),
        )
