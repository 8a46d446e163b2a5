"""CPUs and memory that this process may really use: the machine's, cut by affinity and by cgroup limits.

Version 1 and 2 of cgroups are read. All paths hang below a root, so that tests can build a machine of their own.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from engined.errors import ConfigError

_ROOT = Path("/")


def allowed_cpus(root: Path = _ROOT) -> int:
    """CPUs that affinity and the cgroup quota allow, rounded down, at least 1."""
    num_cpus, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    return num_cpus if quota is None else max(1, int(min(num_cpus, quota)))


def own_cpus(rank: int, num_ranks: int, num_threads: int) -> list[int]:
    """The CPUs for the threads of one rank. Raises ConfigError unless all ranks together have a thread for each CPU of
    this process: with fewer, nobody can say which CPUs other programs leave free."""
    cpus = sorted(os.sched_getaffinity(0))
    if num_ranks * num_threads != len(cpus):
        raise ConfigError(
            f"--bind-threads takes a compute thread for each CPU: there are {num_ranks * num_threads} threads for the "
            f"{len(cpus)} CPUs of this process: leave it out, or give the process as many CPUs with taskset"
        )
    return cpus[rank * num_threads : (rank + 1) * num_threads]


def cpu_quota(root: Path = _ROOT) -> float | None:
    """CPUs whose time the tightest cgroup may use, for example 0.5; None without a limit."""
    quotas = [quota for folder in _cgroup_folders(root, "cpu") if (quota := _cpu_quota(folder)) is not None]
    return min(quotas, default=None)


def available_memory(root: Path = _ROOT) -> int:
    """Bytes that can still be allocated: the kernel's MemAvailable, or what is left of the tightest cgroup limit."""
    rooms = [room for folder in _cgroup_folders(root, "memory") if (room := _memory_room(folder)) is not None]
    return max(0, min([free_memory(root), *rooms]))


def cpu_flags(root: Path = _ROOT) -> frozenset[str]:
    """Feature flags of the first CPU, as /proc/cpuinfo names them ("flags" on x86, "Features" on ARM)."""
    for line in (root / "proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def cpu_model(root: Path = _ROOT) -> str | None:
    """Name of the first CPU; None where /proc/cpuinfo has none."""
    for line in (root / "proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def free_memory(root: Path = _ROOT) -> int:
    """Bytes that the kernel could still give away (MemAvailable), whatever cgroups say."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/meminfo has no MemAvailable: the kernel is older than 3.14")


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders whose limits apply to us, from our own cgroup up to the root of its hierarchy.

    In a container /proc/self/cgroup may show the host's path, while the mount starts at our own group: folders that
    are not there are skipped, and the root is always looked at.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [f"sys/fs/cgroup/{controllers}", f"sys/fs/cgroup/{controller}"]
        else:
            continue
        mount = next((root / name for name in mounts if (root / name).is_dir()), None)
        if mount is None:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = mount.joinpath(*parts[:depth])
            if folder.is_dir():
                yield folder


def _cpu_quota(folder: Path) -> float | None:
    """CPUs that one cgroup may use; None without a limit."""
    if (version_2 := _read(folder / "cpu.max")) is not None:
        quota, period = version_2.split()
        return None if quota == "max" else int(quota) / int(period)
    version_1, period_1 = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if version_1 is None or period_1 is None or int(version_1) <= 0:
        return None
    return int(version_1) / int(period_1)


def _memory_room(folder: Path) -> int | None:
    """Bytes left below the limits of one cgroup; None without a limit. Page cache that can be dropped counts too."""
    for limit_names, usage_name, cache_key in (
        (("memory.max", "memory.high"), "memory.current", "inactive_file"),
        (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limits = [text for name in limit_names if (text := _read(folder / name)) not in (None, "max")]
        usage = _read(folder / usage_name)
        if limits and usage is not None:
            return min(int(limit) for limit in limits if limit) - int(usage) + _statistic(folder, cache_key)
    return None


def _statistic(folder: Path, key: str) -> int:
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
