"""The CPU backend against a loop over tokens and heads that knows nothing of pages, masks or batches."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engined.attention import cpu_paged
from engined.attention.backend import AttentionSpec
from engined.attention.context import forward_context, get_forward_context
from engined.attention.cpu_paged import CpuPagedAttention
from engined.attention.selector import select_backend
from engined.errors import UnsupportedModelError
from tests.attention.batches import SPEC, Batch, batch_lengths


def check(spec: AttentionSpec, lengths: list[tuple[int, int]], seed: int = 0) -> None:
    batch = Batch(spec, lengths, seed)
    torch.testing.assert_close(batch.run(CpuPagedAttention(spec)), batch.expected(), rtol=0, atol=1e-5)


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
    output = batch.run(CpuPagedAttention(batch.spec))
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), batch.expected(), rtol=0, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_cache(dtype: torch.dtype) -> None:
    """Values are about 1, and int8 rounds the largest of a head, about 2, by 0.01: keys and values."""
    batch = Batch(replace(SPEC, dtype=dtype, kv_cache_dtype=torch.int8), [(40, 1), (9, 1), (20, 20), (33, 6)])
    output = batch.run(CpuPagedAttention(batch.spec))
    torch.testing.assert_close(output.float(), batch.expected(), rtol=0, atol=0.06)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_block_bytes(dtype: torch.dtype) -> None:
    backend = CpuPagedAttention(replace(SPEC, kv_cache_dtype=dtype))
    cache = backend.allocate_kv_cache(5)
    assert backend.kv_block_bytes * 5 == cache.keys.nbytes + cache.values.nbytes


def test_selector_names_the_reasons() -> None:
    assert isinstance(select_backend(SPEC, None), CpuPagedAttention)
    spec = replace(SPEC, device=torch.device("cuda"), dtype=torch.float16)
    with pytest.raises(UnsupportedModelError, match=r"cpu_paged: device cuda \(only cpu\), dtype torch.float16"):
        select_backend(spec, None)


def test_context_is_scoped() -> None:
    metadata = Batch(SPEC, [(3, 3)]).metadata()
    with forward_context(metadata):
        assert get_forward_context().metadata is metadata
    with pytest.raises(AssertionError, match="outside of forward_context"):
        get_forward_context()
