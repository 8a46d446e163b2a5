"""Ten minutes of mixed load, after which the daemon is as it was (R34)."""

from pathlib import Path

import pytest

from tests.benchmarks.soak import soak

MINUTES = 10


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_nothing_grows(tmp_path: Path) -> None:
    assert soak(tmp_path, MINUTES) == []
