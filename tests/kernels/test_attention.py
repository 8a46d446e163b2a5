"""The attention kernel against a loop over tokens and heads, and its bits in one batch against those in another."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engined.attention.context import forward_context
from engined.attention.cpu_kernel import CpuKernelAttention
from engined.attention.cpu_paged import CpuPagedAttention
from engined.attention.layer import Attention
from engined.attention.selector import select_backend
from engined.kernels.cpu.library import CpuKernels
from engined.layers.context import LayerContext
from engined.layers.rotary import RotaryEmbedding
from engined.layers.tensor_parallel import TensorParallelGroup
from tests.attention.batches import SPEC, Batch, batch_lengths

KERNEL_SPEC = replace(SPEC, head_dim=32, block_size=16)


def run(batch: Batch, kernels: CpuKernels, **options: tuple[float, float]) -> torch.Tensor:
    return batch.run(CpuKernelAttention(batch.spec, kernels), **options)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=batch_lengths(),
    window=st.none() | st.integers(1, 45),
    heads=st.sampled_from([(6, 2), (3, 3), (8, 1)]),
    sizes=st.sampled_from([(16, 16), (32, 16), (16, 32), (48, 16)]),
    seed=st.integers(0, 1000),
)
def test_any_batch(
    kernels: CpuKernels,
    lengths: list[tuple[int, int]],
    window: int | None,
    heads: tuple[int, int],
    sizes: tuple[int, int],
    seed: int,
) -> None:
    spec = replace(
        SPEC,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        sliding_window=window,
        head_dim=sizes[0],
        block_size=sizes[1],
    )
    batch = Batch(spec, lengths, seed)
    torch.testing.assert_close(run(batch, kernels), batch.expected(), rtol=0, atol=1e-5)


# Of queries and of the cache, with the error that they may have: values are about 1, so bfloat16 rounds by 0.004, and
# int8, whose scale is that of the largest of a head, by 0.015, in keys and in values.
TYPES = {
    "float32": (torch.float32, torch.float32, 1e-5),
    "bfloat16": (torch.bfloat16, torch.bfloat16, 0.02),
    "bfloat16-int8": (torch.bfloat16, torch.int8, 0.06),
    "float32-int8": (torch.float32, torch.int8, 0.06),
}


@pytest.fixture(params=list(TYPES))
def types(request: pytest.FixtureRequest) -> tuple[torch.dtype, torch.dtype, float]:
    return TYPES[request.param]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=batch_lengths(),
    window=st.none() | st.integers(1, 45),
    heads=st.sampled_from([(1, 1), (6, 2), (9, 3), (8, 1), (24, 1)]),
    head_dim=st.sampled_from([16, 48, 64, 80, 96, 112, 128, 256]),
    block_size=st.sampled_from([16, 32, 48]),
    kv_cache_dtype=st.sampled_from([torch.bfloat16, torch.int8]),
)
def test_any_batch_of_bfloat16(
    kernels: CpuKernels,
    lengths: list[tuple[int, int]],
    window: int | None,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    kv_cache_dtype: torch.dtype,
) -> None:
    spec = replace(
        SPEC,
        dtype=torch.bfloat16,
        kv_cache_dtype=kv_cache_dtype,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        sliding_window=window,
        head_dim=head_dim,
        block_size=block_size,
    )
    batch = Batch(spec, lengths)
    tolerance = 0.02 if kv_cache_dtype == torch.bfloat16 else 0.06
    torch.testing.assert_close(run(batch, kernels).float(), batch.expected(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("window", [None, 24, 600])
def test_bits_do_not_depend_on_batch_or_chunk(
    kernels: CpuKernels, types: tuple[torch.dtype, torch.dtype, float], window: int | None
) -> None:
    spec = replace(KERNEL_SPEC, dtype=types[0], kv_cache_dtype=types[1], sliding_window=window)
    batch = Batch(spec, [(200, 1), (17, 1), (700, 1), (150, 150), (90, 40), (64, 64), (1050, 60)])
    together = run(batch, kernels).split([new for _, new in batch.lengths])
    for i, rows in enumerate(together):
        assert torch.equal(run(batch.alone(i), kernels), rows)
    for count in (1, 7, 33):
        last = run(batch.last(count), kernels).split([min(new, count) for _, new in batch.lengths])
        for rows, fewer in zip(together, last, strict=True):
            assert torch.equal(rows[-len(fewer) :], fewer)


@pytest.mark.parametrize("num_threads", [2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(
    kernels: CpuKernels, types: tuple[torch.dtype, torch.dtype, float], num_threads: int
) -> None:
    """Threads share the contexts that are long beside the others."""
    spec = replace(KERNEL_SPEC, dtype=types[0], kv_cache_dtype=types[1])
    batch = Batch(spec, [(3000, 1), (40, 1), (1400, 5)])
    expected = run(batch, kernels)
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(run(batch, kernels), expected)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("stale", [torch.nan, torch.inf, -torch.inf])
def test_what_nobody_wrote_does_not_matter(
    kernels: CpuKernels, types: tuple[torch.dtype, torch.dtype, float], stale: float
) -> None:
    batch = Batch(replace(KERNEL_SPEC, dtype=types[0], kv_cache_dtype=types[1]), [(5, 1), (40, 23), (17, 17)])
    assert torch.equal(run(batch, kernels, stale=(stale, stale)), run(batch, kernels))


def test_a_broken_request_stays_alone(kernels: CpuKernels, types: tuple[torch.dtype, torch.dtype, float]) -> None:
    batch = Batch(replace(KERNEL_SPEC, dtype=types[0], kv_cache_dtype=types[1]), [(30, 1), (30, 1)])
    expected = run(batch, kernels)
    batch.keys[0][3, 0] = torch.nan
    result = run(batch, kernels)
    assert result[0].isnan().any()
    assert torch.equal(result[1], expected[1])


def test_large_scores(kernels: CpuKernels) -> None:
    """The running maximum keeps the exponentials in range."""
    batch = Batch(KERNEL_SPEC, [(100, 1), (70, 70)])
    batch.queries = [queries * 300 for queries in batch.queries]
    torch.testing.assert_close(run(batch, kernels), batch.expected(), rtol=0, atol=1e-3)


def test_long_context(kernels: CpuKernels, types: tuple[torch.dtype, torch.dtype, float]) -> None:
    dtype, kv_cache_dtype, tolerance = types
    spec = replace(KERNEL_SPEC, dtype=dtype, kv_cache_dtype=kv_cache_dtype, num_heads=2, num_kv_heads=1)
    batch = Batch(spec, [(5000, 1), (2100, 3)])
    torch.testing.assert_close(run(batch, kernels).float(), batch.expected(), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]
)
def test_mixed_types(kernels: CpuKernels, dtype: torch.dtype, kv_cache_dtype: torch.dtype) -> None:
    spec = replace(KERNEL_SPEC, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    batch = Batch(spec, [(40, 1), (9, 1), (20, 20), (33, 6)])
    output = run(batch, kernels)
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), batch.expected(), rtol=0, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_block_bytes(kernels: CpuKernels, dtype: torch.dtype) -> None:
    backend = CpuKernelAttention(replace(KERNEL_SPEC, kv_cache_dtype=dtype), kernels)
    cache = backend.allocate_kv_cache(5)
    assert backend.kv_block_bytes * 5 == cache.keys.nbytes + cache.values.nbytes


def test_zeroed_blocks_are_whole_blocks(kernels: CpuKernels) -> None:
    cache = CpuKernelAttention(KERNEL_SPEC, kernels).allocate_kv_cache(3)
    cache.keys.fill_(1)
    cache.values.fill_(1)
    cache.zero_blocks([1])
    for stored in (cache.keys, cache.values):
        assert [stored[:, block].max().item() for block in range(3)] == [1, 0, 1]


def test_selection(kernels: CpuKernels) -> None:
    assert isinstance(select_backend(KERNEL_SPEC, kernels), CpuKernelAttention)
    assert isinstance(select_backend(replace(KERNEL_SPEC, block_size=2), kernels), CpuPagedAttention)
    assert isinstance(select_backend(KERNEL_SPEC, None), CpuPagedAttention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 24, 64])
def test_rotation(kernels: CpuKernels, dtype: torch.dtype, head_dim: int) -> None:
    """Queries and keys are rotated before anything else, values are not: as by the backend in torch."""
    if head_dim % kernels.lanes:
        pytest.skip("this vector does not step through such heads")
    spec = replace(KERNEL_SPEC, head_dim=head_dim, dtype=dtype, kv_cache_dtype=dtype)
    batch = Batch(spec, [(40, 40), (25, 25)])
    context = LayerContext(dtype=dtype, device=torch.device("cpu"), tp=TensorParallelGroup())
    rotation = RotaryEmbedding(head_dim, 10000.0, None, context)(torch.randint(0, 9000, (65,)))
    heads = torch.randn(65, spec.num_heads + 2 * spec.num_kv_heads, head_dim).to(dtype)
    results = []
    for backend in (CpuKernelAttention(spec, kernels), CpuPagedAttention(spec)):
        layer = Attention()
        layer.bind(backend, backend.allocate_kv_cache(batch.num_blocks))
        with forward_context(batch.metadata()):
            results.append(layer(heads.clone(), rotation).float())
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
