"""Attention on a CPU in plain torch: gathers the blocks of a few requests, then torch's fused attention.

Decodes are batched: requests of similar length together, padded to the longest, in groups small enough that what was
gathered is still in the CPU's cache when it is read. Requests with several new tokens go one by one.
The query heads that share a KV head are folded, so that keys and values are never repeated.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from engined.attention.backend import AttentionBackend, AttentionSpec, KVCache
from engined.attention.host_memory import untouched_zeros
from engined.attention.metadata import AttentionMetadata
from engined.kernels.cpu.library import CpuKernels
from engined.layers.rotary import Rotation

# Cached tokens gathered at once; one request alone may exceed it. A step of 32 requests of 192 tokens, in float32, took
# 362 ms with 1024 of them, 407 with 2048, 548 with 8192 (two Zen 1 cores): what is gathered must fit the CPU's cache.
_GROUP_TOKENS = 1024
_SCALE_BYTES = torch.float32.itemsize


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Requests with one new token each, attended together."""

    rows: Tensor | slice
    """[num_reqs]: their rows in the flat batch; a slice if that is all decodes in order."""
    block_ids: Tensor
    """[num_reqs * num_blocks]: blocks to gather, request by request."""
    mask: Tensor
    """[num_reqs, 1, 1, num_blocks * block_size]: 0 where the token is seen, -inf where not."""


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One request with several new tokens."""

    rows: slice
    """Its rows in the flat batch."""
    block_ids: Tensor
    """[num_blocks]"""
    num_tokens: int
    """Of the gathered ones, how many belong to the request."""
    mask: Tensor | None
    """[num_new_tokens, num_tokens]: 0 or -inf; None where plain causal order is all that is needed."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """One forward."""

    slot_mapping: Tensor
    decodes: list[_DecodeGroup]
    prefills: list[_Prefill]


class CpuPagedAttention(AttentionBackend):
    """Reads the paged cache for decodes and prefills, in any mix and of any length, with or without a window."""

    name = "cpu_paged"

    def __init__(self, spec: AttentionSpec, kernels: CpuKernels | None = None) -> None:
        super().__init__(spec, kernels)
        # In float64 the result, rounded to float32, has the same bits whether a token is computed in a prompt, in a
        # chunk of it, or as a decode in any batch: a float32 model answers alike in all of them.
        self._compute_dtype = torch.float64 if spec.dtype == torch.float32 else spec.dtype

    @classmethod
    def refusals(cls, spec: AttentionSpec, kernels: CpuKernels | None = None) -> list[str]:
        reasons = []
        if spec.device.type != "cpu":
            reasons.append(f"device {spec.device.type} (only cpu)")
        if spec.dtype not in (torch.float32, torch.bfloat16):
            reasons.append(f"dtype {spec.dtype} (only float32 and bfloat16)")
        if spec.kv_cache_dtype not in (torch.float32, torch.bfloat16, torch.int8):
            reasons.append(f"KV cache dtype {spec.kv_cache_dtype} (only float32, bfloat16 and int8)")
        if spec.num_heads % spec.num_kv_heads:
            reasons.append(f"{spec.num_heads} query heads do not share {spec.num_kv_heads} KV heads evenly")
        return reasons

    def allocate_kv_cache(self, num_blocks: int) -> KVCache:
        spec = self.spec
        row = spec.head_dim + (_SCALE_BYTES if spec.kv_cache_dtype == torch.int8 else 0)
        shape = (spec.num_kv_heads, num_blocks, spec.block_size, row)
        return KVCache(untouched_zeros(shape, spec.kv_cache_dtype), untouched_zeros(shape, spec.kv_cache_dtype))

    def prepare(self, metadata: AttentionMetadata) -> _Plan:
        query_starts = metadata.query_start_loc.tolist()
        seq_lens = metadata.seq_lens.tolist()
        assert query_starts[metadata.num_decodes] == metadata.num_decodes, "decodes must come first"
        return _Plan(
            slot_mapping=metadata.slot_mapping,
            decodes=self._group_decodes(metadata, seq_lens[: metadata.num_decodes]),
            prefills=[
                self._plan_prefill(metadata.block_table[i], slice(*query_starts[i : i + 2]), seq_lens[i])
                for i in range(metadata.num_decodes, len(seq_lens))
            ],
        )

    def forward(self, heads: Tensor, rotation: Rotation, cache: KVCache, prepared: _Plan) -> Tensor:
        num_heads, num_rotated = self.spec.num_heads, self.spec.num_heads + self.spec.num_kv_heads
        # Rotated together: at one token every call costs more than its arithmetic.
        rotated = rotation.apply(heads[:, :num_rotated])
        self._write(rotated[:, num_heads:], heads[:, num_rotated:], cache, prepared)
        return self._attend(rotated[:, :num_heads], cache, prepared)

    def _write(self, keys: Tensor, values: Tensor, cache: KVCache, prepared: _Plan) -> None:
        slots = prepared.slot_mapping
        for new, stored in ((keys, cache.keys), (values, cache.values)):
            rows = _quantize(new) if stored.dtype == torch.int8 else new.to(stored.dtype)
            stored.flatten(1, 2).index_copy_(1, slots, rows.transpose(0, 1))

    def _attend(self, queries: Tensor, cache: KVCache, prepared: _Plan) -> Tensor:
        output = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for group in prepared.decodes:
            output[group.rows] = self._attend_decodes(queries[group.rows], cache, group)
        for prefill in prepared.prefills:
            output[prefill.rows] = self._attend_prefill(queries[prefill.rows], cache, prefill)
        return output

    def _group_decodes(self, metadata: AttentionMetadata, seq_lens: list[int]) -> list[_DecodeGroup]:
        """Put requests that read about as many blocks into one group, the longest first."""
        first_blocks = [self._first_block(length - 1) for length in seq_lens]
        num_blocks = [self._end_block(length) - first for length, first in zip(seq_lens, first_blocks, strict=True)]
        if 0 < max(num_blocks, default=0) * self.spec.block_size * len(seq_lens) <= _GROUP_TOKENS:
            every = torch.arange(len(seq_lens))
            group = self._make_group(metadata, every, torch.tensor(first_blocks), max(num_blocks))
            return [replace(group, rows=slice(0, len(seq_lens)))]
        order = sorted(range(len(seq_lens)), key=lambda i: -num_blocks[i])
        groups = []
        begin = 0
        while begin < len(order):
            longest = num_blocks[order[begin]]
            end = begin + max(1, _GROUP_TOKENS // (longest * self.spec.block_size))
            members = torch.tensor(order[begin:end])
            groups.append(self._make_group(metadata, members, torch.tensor(first_blocks)[members], longest))
            begin = end
        return groups

    def _make_group(
        self, metadata: AttentionMetadata, members: Tensor, first_blocks: Tensor, num_blocks: int
    ) -> _DecodeGroup:
        columns = first_blocks[:, None] + torch.arange(num_blocks)
        # A shorter request reads on behind its last block: some valid block, whose tokens the mask hides.
        columns.clamp_(max=metadata.block_table.shape[1] - 1)
        block_ids = metadata.block_table[members].gather(1, columns)
        tokens = first_blocks[:, None] * self.spec.block_size + torch.arange(num_blocks * self.spec.block_size)
        query_positions = metadata.seq_lens[members, None] - 1
        return _DecodeGroup(members, block_ids.flatten(), self._mask(query_positions, tokens)[:, None, None])

    def _plan_prefill(self, block_table: Tensor, rows: slice, seq_len: int) -> _Prefill:
        num_new = rows.stop - rows.start
        first_position = seq_len - num_new
        block_size, window = self.spec.block_size, self.spec.sliding_window
        first_block = self._first_block(first_position)
        start = first_block * block_size
        is_plain_causal = first_position == 0 and (window is None or seq_len <= window)
        mask = None
        if not is_plain_causal:
            mask = self._mask(torch.arange(first_position, seq_len)[:, None], torch.arange(start, seq_len))
        return _Prefill(
            rows=rows,
            block_ids=block_table[first_block : self._end_block(seq_len)],
            num_tokens=seq_len - start,
            mask=mask,
        )

    def _attend_decodes(self, queries: Tensor, cache: KVCache, group: _DecodeGroup) -> Tensor:
        """queries [num_reqs, num_heads, head_dim] -> the same shape"""
        spec, num_reqs = self.spec, queries.shape[0]
        # [num_reqs, num_kv_heads, tokens, head_dim]: the heads that share a KV head become rows of one query.
        keys, values = (
            self._gather(stored, group.block_ids).view(spec.num_kv_heads, num_reqs, -1, spec.head_dim).transpose(0, 1)
            for stored in (cache.keys, cache.values)
        )
        folded = queries.reshape(num_reqs, spec.num_kv_heads, -1, spec.head_dim).to(self._compute_dtype)
        attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask)
        return attended.reshape(queries.shape).to(spec.dtype)

    def _attend_prefill(self, queries: Tensor, cache: KVCache, prefill: _Prefill) -> Tensor:
        """queries [num_new_tokens, num_heads, head_dim] -> the same shape"""
        spec = self.spec
        group_size = spec.num_heads // spec.num_kv_heads
        # KV heads take the place of the batch; the heads that share one see it through a stride of 0.
        keys, values = (
            self._gather(stored, prefill.block_ids)[:, None, : prefill.num_tokens].expand(-1, group_size, -1, -1)
            for stored in (cache.keys, cache.values)
        )
        folded = (
            queries.reshape(-1, spec.num_kv_heads, group_size, spec.head_dim)
            .permute(1, 2, 0, 3)
            .to(self._compute_dtype)
        )
        attended = F.scaled_dot_product_attention(
            folded, keys, values, attn_mask=prefill.mask, is_causal=prefill.mask is None
        )
        return attended.flatten(0, 1).transpose(0, 1).to(spec.dtype)

    def _gather(self, stored: Tensor, block_ids: Tensor) -> Tensor:
        """Blocks of the cache -> [num_kv_heads, tokens, head_dim], in the type that is computed in."""
        rows = stored.index_select(1, block_ids).flatten(1, 2)
        return (_dequantize(rows) if stored.dtype == torch.int8 else rows).to(self._compute_dtype)

    def _mask(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """0 where the key may be seen and -inf elsewhere, in the broadcast shape of the two."""
        is_hidden = key_positions > query_positions
        if self.spec.sliding_window is not None:
            is_hidden |= key_positions <= query_positions - self.spec.sliding_window
        return torch.zeros(is_hidden.shape, dtype=self._compute_dtype).masked_fill_(is_hidden, -torch.inf)

    def _first_block(self, query_position: int) -> int:
        """The first block that a query at this position can see."""
        if self.spec.sliding_window is None:
            return 0
        return max(0, query_position - self.spec.sliding_window + 1) // self.spec.block_size

    def _end_block(self, seq_len: int) -> int:
        return -(-seq_len // self.spec.block_size)


def _quantize(heads: Tensor) -> Tensor:
    """[..., head_dim] -> int8 [..., head_dim + 4]: the integers, of which the largest is 127, then the float32 scale.
    What is not finite makes the scale not a number."""
    largest = heads.float().abs().amax(dim=-1, keepdim=True)
    scales = torch.where(largest.isfinite(), largest / 127, torch.nan)
    integers = (heads.float() / scales).round().nan_to_num(0).to(torch.int8)
    return torch.cat((integers, scales.view(torch.int8)), dim=-1)


def _dequantize(rows: Tensor) -> Tensor:
    """The inverse, in float32."""
    return rows[..., :-_SCALE_BYTES] * rows[..., -_SCALE_BYTES:].contiguous().view(torch.float32)
