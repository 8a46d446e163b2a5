"""Two real ranks over gloo compute the logits of one."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from tests.models.families import make_reference, save
from tests.models.paged import PagedModel
from tests.models.ranks import rank_main, run


@pytest.mark.parametrize(
    ("variant", "dtype", "tolerance"),
    [
        ("qwen3", torch.float32, 1e-5),
        ("qwen3-tied", torch.float32, 1e-5),
        ("llama-biases", torch.float32, 1e-5),
        ("qwen2", torch.bfloat16, 0.1),
    ],
)
def test_two_ranks_equal_one(variant: str, dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    save(make_reference(variant), tmp_path)
    expected = run(PagedModel.open(tmp_path, dtype=dtype, kv_cache_dtype=dtype))
    mp.spawn(rank_main, args=(str(tmp_path), dtype), nprocs=2)
    outputs = torch.load(tmp_path / f"logits-{dtype}.pt")
    for one, two in zip(expected, outputs, strict=True):
        assert one is not None
        torch.testing.assert_close(two, one, rtol=0, atol=tolerance)
