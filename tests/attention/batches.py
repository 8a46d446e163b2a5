"""Batches of random sequences for the attention backends, and what a loop that knows nothing of pages makes of them."""

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from engined.attention.backend import AttentionBackend, AttentionSpec
from engined.attention.context import forward_context
from engined.attention.layer import Attention
from engined.attention.metadata import AttentionMetadata
from engined.layers.rotary import Rotation

SPEC = AttentionSpec(
    device=torch.device("cpu"),
    dtype=torch.float32,
    kv_cache_dtype=torch.float32,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    block_size=4,
)


def no_rotation(spec: AttentionSpec, num_tokens: int) -> Rotation:
    """The angle 0 for every token."""
    half = torch.ones(num_tokens, spec.head_dim // 2)
    return Rotation(torch.cat((half, torch.zeros_like(half)), dim=1))


class Batch:
    """Random sequences of which the last `new[i]` tokens are new; the others are written to the cache beforehand."""

    def __init__(self, spec: AttentionSpec, lengths: list[tuple[int, int]], seed: int = 0) -> None:
        """`lengths` are pairs of (tokens in all, new tokens)."""
        torch.manual_seed(seed)
        self.spec = spec
        self.lengths = sorted(lengths, key=lambda pair: pair[1] != 1)
        self.keys = [self._random(total, spec.num_kv_heads) for total, _ in self.lengths]
        self.values = [self._random(total, spec.num_kv_heads) for total, _ in self.lengths]
        self.queries = [self._random(new, spec.num_heads) for _, new in self.lengths]
        counts = [-(-total // spec.block_size) for total, _ in self.lengths]
        self.num_blocks = sum(counts) + 3
        ids = iter(torch.randperm(self.num_blocks).tolist())
        self.blocks = [[next(ids) for _ in range(count)] for count in counts]

    def _random(self, num_tokens: int, num_heads: int) -> Tensor:
        """Floats that the type of the batch can hold."""
        return torch.randn(num_tokens, num_heads, self.spec.head_dim).to(self.spec.dtype).float()

    def metadata(self) -> AttentionMetadata:
        """Of the step that computes the new tokens."""
        return self._metadata([(total - new, total) for total, new in self.lengths])

    def _metadata(self, spans: list[tuple[int, int]]) -> AttentionMetadata:
        """Of a step that computes tokens [begin, end) of each sequence."""
        width = max(map(len, self.blocks))
        new = [end - begin for begin, end in spans]
        return AttentionMetadata(
            query_start_loc=torch.tensor([0, *new]).cumsum(0),
            seq_lens=torch.tensor([end for _, end in spans]),
            slot_mapping=torch.cat([self.slots(i, begin, end) for i, (begin, end) in enumerate(spans)]),
            block_table=torch.tensor([blocks + [0] * (width - len(blocks)) for blocks in self.blocks]),
            # Order matters to a step, but not to the one that only fills the cache.
            num_decodes=new.count(1) if sorted(new, key=lambda count: count != 1) == new and 0 not in new else 0,
            max_seq_len=max(end for _, end in spans),
        )

    def slots(self, i: int, start: int, end: int) -> Tensor:
        size = self.spec.block_size
        slots = [self.blocks[i][t // size] * size + t % size for t in range(start, end)]
        return torch.tensor(slots, dtype=torch.int64)

    def run(self, backend: AttentionBackend, *, stale: tuple[float, float] = (1e4, -1e4)) -> Tensor:
        """Fill the cache with the old tokens, then run the layer over the new ones. `stale` is what lies in the slots
        of keys and values that nobody wrote: it must not matter."""
        cache = backend.allocate_kv_cache(self.num_blocks)
        for stored, value in zip((cache.keys, cache.values), stale, strict=True):
            if self.spec.kv_cache_dtype == torch.int8:
                # Scales of 3, or not a number.
                stored.view(torch.uint8).fill_(64 if math.isfinite(value) else 255)
            else:
                stored.view(self.spec.kv_cache_dtype).fill_(value)
        layer = Attention()
        layer.bind(backend, cache)
        old = [(0, total - new) for total, new in self.lengths]
        if any(end for _, end in old):
            with forward_context(self._metadata(old)):
                layer(self._heads(old), no_rotation(self.spec, sum(end for _, end in old)))
        new = [(total - new, total) for total, new in self.lengths]
        with forward_context(self.metadata()):
            return layer(self._heads(new), no_rotation(self.spec, sum(end - begin for begin, end in new)))

    def alone(self, i: int) -> "Batch":
        """Sequence `i` as a batch of its own, in other blocks."""
        batch = Batch(self.spec, [self.lengths[i]])
        batch.keys, batch.values, batch.queries = [self.keys[i]], [self.values[i]], [self.queries[i]]
        return batch

    def last(self, count: int) -> "Batch":
        """The same sequences, of which only the last `count` tokens are new, where there are as many."""
        batch = Batch(self.spec, [(total, min(new, count)) for total, new in self.lengths])
        batch.keys, batch.values = self.keys, self.values
        batch.queries = [queries[-count:] for queries in self.queries]
        return batch

    def _heads(self, spans: list[tuple[int, int]]) -> Tensor:
        """Queries, keys and values of tokens [begin, end) of each sequence, as a projection makes them."""
        parts = []
        for i, (begin, end) in enumerate(spans):
            queries = self.queries[i]
            if len(queries) != end - begin:  # old tokens, whose own results nobody reads
                queries = torch.zeros(end - begin, *queries.shape[1:])
            parts.append(torch.cat((queries, self.keys[i][begin:end], self.values[i][begin:end]), dim=1))
        return torch.cat(parts).to(self.spec.dtype)

    def expected(self) -> Tensor:
        """[num_tokens, num_heads * head_dim], computed in float64"""
        rows = []
        for i, (total, new) in enumerate(self.lengths):
            for t in range(new):
                position = total - new + t
                first = 0 if self.spec.sliding_window is None else max(0, position - self.spec.sliding_window + 1)
                for head in range(self.spec.num_heads):
                    kv_head = head * self.spec.num_kv_heads // self.spec.num_heads
                    seen_keys = self.keys[i][first : position + 1, kv_head]
                    scores = seen_keys.double() @ self.queries[i][t, head].double() / math.sqrt(self.spec.head_dim)
                    rows.append(scores.softmax(0) @ self.values[i][first : position + 1, kv_head].double())
        return torch.stack(rows).float().view(-1, self.spec.num_heads * self.spec.head_dim)


@st.composite
def batch_lengths(draw: st.DrawFn) -> list[tuple[int, int]]:
    """One to six requests: decodes, prefills from the start and prefills with cached context."""
    totals = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    return [(total, draw(st.sampled_from([1, total]) | st.integers(1, total))) for total in totals]
