"""The CPU backend against a loop over tokens and heads that knows nothing of pages, masks or batches."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engined.attention import cpu_paged
from engined.attention.backend import AttentionSpec
from engined.attention.context import forward_context, get_forward_context
from engined.attention.cpu_paged import CpuPagedAttention
from engined.attention.layer import Attention
from engined.attention.metadata import AttentionMetadata
from engined.attention.selector import select_backend
from engined.errors import UnsupportedModelError

SPEC = AttentionSpec(
    device=torch.device("cpu"),
    dtype=torch.float32,
    kv_cache_dtype=torch.float32,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    block_size=4,
)


class Batch:
    """Random sequences of which the last `new[i]` tokens are new; the others are written to the cache beforehand."""

    def __init__(self, spec: AttentionSpec, lengths: list[tuple[int, int]], seed: int = 0) -> None:
        """`lengths` are pairs of (tokens in all, new tokens)."""
        torch.manual_seed(seed)
        self.spec = spec
        self.lengths = sorted(lengths, key=lambda pair: pair[1] != 1)
        self.keys = [torch.randn(total, spec.num_kv_heads, spec.head_dim) for total, _ in self.lengths]
        self.values = [torch.randn(total, spec.num_kv_heads, spec.head_dim) for total, _ in self.lengths]
        self.queries = [torch.randn(new, spec.num_heads, spec.head_dim) for _, new in self.lengths]
        counts = [-(-total // spec.block_size) for total, _ in self.lengths]
        self.num_blocks = sum(counts) + 3
        ids = iter(torch.randperm(self.num_blocks).tolist())
        self.blocks = [[next(ids) for _ in range(count)] for count in counts]

    def metadata(self) -> AttentionMetadata:
        width = max(map(len, self.blocks))
        new = [new for _, new in self.lengths]
        return AttentionMetadata(
            query_start_loc=torch.tensor([0, *new]).cumsum(0),
            seq_lens=torch.tensor([total for total, _ in self.lengths]),
            slot_mapping=torch.cat([self.slots(i, total - n, total) for i, (total, n) in enumerate(self.lengths)]),
            block_table=torch.tensor([blocks + [0] * (width - len(blocks)) for blocks in self.blocks]),
            num_decodes=new.count(1),
            max_seq_len=max(total for total, _ in self.lengths),
        )

    def slots(self, i: int, start: int, end: int) -> Tensor:
        size = self.spec.block_size
        slots = [self.blocks[i][t // size] * size + t % size for t in range(start, end)]
        return torch.tensor(slots, dtype=torch.int64)

    def run(self) -> Tensor:
        """Fill the cache with the old tokens, then run the layer over the new ones."""
        backend = CpuPagedAttention(self.spec)
        cache = backend.allocate_kv_cache(self.num_blocks)
        # What nobody wrote must not matter.
        cache.keys.fill_(1e4)
        cache.values.fill_(-1e4)
        for i, (total, new) in enumerate(self.lengths):
            slots = self.slots(i, 0, total - new)
            for stored, old in ((cache.keys, self.keys[i]), (cache.values, self.values[i])):
                stored.flatten(1, 2)[:, slots] = old[: total - new].transpose(0, 1).to(stored.dtype)
        layer = Attention()
        layer.bind(backend, cache)
        new_keys, new_values = (
            torch.cat([tensor[total - new :] for tensor, (total, new) in zip(tensors, self.lengths, strict=True)])
            for tensors in (self.keys, self.values)
        )
        with forward_context(self.metadata()):
            return layer(
                torch.cat(self.queries).to(self.spec.dtype),
                new_keys.to(self.spec.dtype),
                new_values.to(self.spec.dtype),
            )

    def expected(self) -> Tensor:
        """[num_tokens, num_heads * head_dim]"""
        rows = []
        for i, (total, new) in enumerate(self.lengths):
            for t in range(new):
                position = total - new + t
                first = 0 if self.spec.sliding_window is None else max(0, position - self.spec.sliding_window + 1)
                for head in range(self.spec.num_heads):
                    kv_head = head * self.spec.num_kv_heads // self.spec.num_heads
                    seen_keys = self.keys[i][first : position + 1, kv_head]
                    scores = seen_keys @ self.queries[i][t, head] / math.sqrt(self.spec.head_dim)
                    rows.append(scores.softmax(0) @ self.values[i][first : position + 1, kv_head])
        return torch.stack(rows).view(-1, self.spec.num_heads * self.spec.head_dim)


def check(spec: AttentionSpec, lengths: list[tuple[int, int]], seed: int = 0) -> None:
    batch = Batch(spec, lengths, seed)
    torch.testing.assert_close(batch.run(), batch.expected(), rtol=0, atol=1e-5)


@st.composite
def batch_lengths(draw: st.DrawFn) -> list[tuple[int, int]]:
    """One to six requests: decodes, prefills from the start and prefills with cached context."""
    totals = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    return [(total, draw(st.sampled_from([1, total]) | st.integers(1, total))) for total in totals]


@settings(max_examples=150, deadline=None)
@given(
    lengths=batch_lengths(),
    window=st.none() | st.integers(1, 45),
    heads=st.sampled_from([(6, 2), (3, 3), (4, 1)]),
    block_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 1000),
)
def test_any_batch(
    lengths: list[tuple[int, int]], window: int | None, heads: tuple[int, int], block_size: int, seed: int
) -> None:
    spec = replace(SPEC, num_heads=heads[0], num_kv_heads=heads[1], sliding_window=window, block_size=block_size)
    check(spec, lengths, seed)


def test_decodes_of_very_different_lengths_fall_into_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_paged, "_GROUP_TOKENS", 64)
    lengths = [(total, 1) for total in (300, 1, 7, 64, 65, 3, 130, 16, 17, 2)]
    backend = CpuPagedAttention(SPEC)
    plan = backend.prepare(Batch(SPEC, lengths).metadata())
    gathered = [len(group.block_ids) * SPEC.block_size for group in plan.decodes]
    assert len(gathered) > 3
    assert max(gathered[1:]) <= 132, "only the longest requests may exceed the bound, each alone"
    assert sorted(torch.cat([group.rows for group in plan.decodes]).tolist()) == list(range(len(lengths)))
    check(SPEC, lengths)


def test_a_window_leaves_old_blocks_ungathered() -> None:
    spec = replace(SPEC, sliding_window=8)
    plan = CpuPagedAttention(spec).prepare(Batch(spec, [(400, 1), (400, 4)]).metadata())
    assert len(plan.decodes[0].block_ids) <= 3
    assert len(plan.prefills[0].block_ids) <= 4


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype"),
    [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)],
)
def test_16_bit_types(dtype: torch.dtype, kv_cache_dtype: torch.dtype) -> None:
    batch = Batch(replace(SPEC, dtype=dtype, kv_cache_dtype=kv_cache_dtype), [(40, 1), (9, 1), (20, 20), (33, 6)])
    output = batch.run()
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), batch.expected(), rtol=0, atol=0.03)


def test_block_bytes() -> None:
    backend = CpuPagedAttention(replace(SPEC, kv_cache_dtype=torch.bfloat16))
    cache = backend.allocate_kv_cache(5)
    assert backend.kv_block_bytes * 5 == cache.keys.nbytes + cache.values.nbytes


def test_selector_names_the_reasons() -> None:
    assert isinstance(select_backend(SPEC), CpuPagedAttention)
    spec = replace(SPEC, device=torch.device("cuda"), dtype=torch.float16)
    with pytest.raises(UnsupportedModelError, match=r"cpu_paged: device cuda \(only cpu\), dtype torch.float16"):
        select_backend(spec)


def test_context_is_scoped() -> None:
    metadata = Batch(SPEC, [(3, 3)]).metadata()
    with forward_context(metadata):
        assert get_forward_context().metadata is metadata
    with pytest.raises(AssertionError, match="outside of forward_context"):
        get_forward_context()
