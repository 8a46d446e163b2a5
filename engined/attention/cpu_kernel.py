"""Attention on a CPU by our own kernel, which reads the paged cache in place: `kernels/cpu/source/attention.cpp`."""

import ctypes
import math
from dataclasses import dataclass

from torch import Tensor

from engined.attention.backend import AttentionBackend, AttentionSpec, KVCache
from engined.attention.host_memory import untouched_zeros
from engined.attention.metadata import AttentionMetadata
from engined.kernels.cpu.library import DTYPES, AttentionShape, CpuKernels
from engined.layers.rotary import Rotation


@dataclass(frozen=True, slots=True)
class _Batch:
    """The metadata of one forward, with every tensor contiguous."""

    query_starts: Tensor
    seq_lens: Tensor
    slot_mapping: Tensor
    block_table: Tensor


class CpuKernelAttention(AttentionBackend):
    """Decodes and prefills in any mix and of any length, with or without a window.

    The cache holds the keys of a block as [head_dim, block_size]. Sums are float32, and the result of a query has the
    same bits in any batch and any chunk.
    """

    name = "cpu_kernel"

    def __init__(self, spec: AttentionSpec, kernels: CpuKernels | None) -> None:
        super().__init__(spec, kernels)
        assert kernels is not None
        self._attention = kernels.attention(spec.dtype, spec.kv_cache_dtype)

    @classmethod
    def refusals(cls, spec: AttentionSpec, kernels: CpuKernels | None) -> list[str]:
        if kernels is None:
            return ["the CPU kernels are not built"]
        reasons = []
        if spec.device.type != "cpu":
            reasons.append(f"device {spec.device.type} (only cpu)")
        for what, dtype in (("dtype", spec.dtype), ("KV cache dtype", spec.kv_cache_dtype)):
            if dtype not in DTYPES:
                reasons.append(f"{what} {dtype} (only float32 and bfloat16)")
        for what, size in (("head size", spec.head_dim), ("block size", spec.block_size)):
            if size % kernels.lanes:
                reasons.append(f"{what} {size} is not a multiple of {kernels.lanes}")
        if spec.num_heads % spec.num_kv_heads:
            reasons.append(f"{spec.num_heads} query heads do not share {spec.num_kv_heads} KV heads evenly")
        return reasons

    def allocate_kv_cache(self, num_blocks: int) -> KVCache:
        spec = self.spec
        keys = (spec.num_kv_heads, num_blocks, spec.head_dim, spec.block_size)
        values = (spec.num_kv_heads, num_blocks, spec.block_size, spec.head_dim)
        return KVCache(untouched_zeros(keys, spec.kv_cache_dtype), untouched_zeros(values, spec.kv_cache_dtype))

    def prepare(self, metadata: AttentionMetadata) -> _Batch:
        return _Batch(
            metadata.query_start_loc.contiguous(),
            metadata.seq_lens.contiguous(),
            metadata.slot_mapping.contiguous(),
            metadata.block_table.contiguous(),
        )

    def forward(self, heads: Tensor, rotation: Rotation, cache: KVCache, prepared: _Batch) -> Tensor:
        assert heads.is_contiguous()
        output = heads.new_empty(heads.shape[0], self.spec.num_heads, self.spec.head_dim)
        self._attention(
            ctypes.byref(self._shape(cache)),
            heads.data_ptr(),
            rotation.angles.data_ptr(),
            prepared.slot_mapping.data_ptr(),
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            prepared.query_starts.data_ptr(),
            prepared.seq_lens.data_ptr(),
            prepared.block_table.data_ptr(),
            prepared.block_table.shape[1],
            len(prepared.seq_lens),
            output.data_ptr(),
        )
        return output

    def _shape(self, cache: KVCache) -> AttentionShape:
        spec = self.spec
        return AttentionShape(
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.block_size,
            cache.keys.shape[1],
            spec.sliding_window or 0,
            1 / math.sqrt(spec.head_dim),
        )
