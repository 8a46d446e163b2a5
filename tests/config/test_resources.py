"""CPU and memory limits, read from small machines that are built as folders."""

import os
from pathlib import Path

import pytest

from engined.config.dtype import resolve_dtype, resolve_kv_cache_dtype
from engined.config.resources import allowed_cpus, available_memory, own_cpus
from engined.config.schema import CacheConfig, ModelConfig
from engined.errors import ConfigError

MIB = 1 << 20


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


def _machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    files = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:    1048576 kB\n", "proc/self/cgroup": cgroup, **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.usefixtures("many_cpus")
@pytest.mark.parametrize(
    ("cgroup", "files", "cpus"),
    [
        ("0::/", {}, 64),
        ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000"}, 64),
        ("0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "250000 100000"}, 2),
        ("0::/", {"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        (
            "4:cpu,cpuacct:/docker/x\n0::/",
            {
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        (
            "1:cpu:/a",
            {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"},
            64,
        ),
    ],
)
def test_allowed_cpus(tmp_path: Path, cgroup: str, files: dict[str, str], cpus: int) -> None:
    assert allowed_cpus(_machine(tmp_path, cgroup, files)) == cpus


def test_affinity_limits_the_cpus(tmp_path: Path) -> None:
    assert allowed_cpus(_machine(tmp_path, "0::/", {})) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("cgroup", "files", "mebibytes"),
    [
        ("0::/", {}, 1024),
        ("0::/", {"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": "5"}, 1024),
        (
            "0::/a/b",
            {
                "sys/fs/cgroup/a/b/memory.max": "max",
                "sys/fs/cgroup/a/b/memory.current": str(100 * MIB),
                "sys/fs/cgroup/a/memory.max": str(500 * MIB),
                "sys/fs/cgroup/a/memory.current": str(300 * MIB),
                "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {50 * MIB}",
            },
            250,
        ),
        (
            "0::/",
            {
                "sys/fs/cgroup/memory.max": str(800 * MIB),
                "sys/fs/cgroup/memory.high": str(600 * MIB),
                "sys/fs/cgroup/memory.current": str(100 * MIB),
            },
            500,
        ),
        (
            "3:memory:/docker/x",
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(400 * MIB),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": str(300 * MIB),
                "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {10 * MIB}",
            },
            110,
        ),
        (
            "3:memory:/",
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(1 << 63),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
            },
            1024,
        ),
        ("0::/", {"sys/fs/cgroup/memory.max": "10", "sys/fs/cgroup/memory.current": "20"}, 0),
    ],
)
def test_available_memory(tmp_path: Path, cgroup: str, files: dict[str, str], mebibytes: int) -> None:
    assert available_memory(_machine(tmp_path, cgroup, files)) == mebibytes * MIB


def test_this_machine_has_cpus_and_memory() -> None:
    assert allowed_cpus() >= 1
    assert available_memory() > MIB


@pytest.mark.parametrize(
    ("cpuinfo", "dtype"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16", "bfloat16"),
        ("flags : amx_bf16", "bfloat16"),
        ("Features\t: fp asimd bf16", "bfloat16"),
        ("flags : fpu avx2 avx512f", "float32"),
        ("", "float32"),
    ],
)
def test_automatic_dtype(tmp_path: Path, cpuinfo: str, dtype: str) -> None:
    root = _machine(tmp_path, "0::/", {"proc/cpuinfo": cpuinfo})
    assert resolve_dtype(ModelConfig(), root) == dtype
    assert resolve_dtype(ModelConfig(dtype="bfloat16"), root) == "bfloat16"
    assert resolve_dtype(ModelConfig(quantization="int4"), root) == "bfloat16"


def test_kv_cache_dtype_follows_the_weights() -> None:
    assert resolve_kv_cache_dtype(CacheConfig(), "bfloat16") == "bfloat16"
    assert resolve_kv_cache_dtype(CacheConfig(kv_cache_dtype="float32"), "bfloat16") == "float32"


def test_cpus_are_given_out_only_with_a_thread_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {2, 3, 5, 8})
    assert own_cpus(rank=0, num_ranks=1, num_threads=4) == [2, 3, 5, 8]
    assert [own_cpus(rank, num_ranks=2, num_threads=2) for rank in (0, 1)] == [[2, 3], [5, 8]]
    for num_threads in (3, 5):
        with pytest.raises(ConfigError, match=f"there are {num_threads} threads for the 4 CPUs"):
            own_cpus(rank=0, num_ranks=1, num_threads=num_threads)
