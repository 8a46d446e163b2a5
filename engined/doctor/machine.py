"""CPU, memory and kernel settings, as far as they decide how fast a model runs. All paths hang below a root, so that
tests can build a machine of their own."""

import os
import platform
import resource
from pathlib import Path

from engined.config.resources import (
    allowed_cpus,
    available_memory,
    cpu_flags,
    cpu_model,
    cpu_quota,
    free_memory,
)
from engined.config.units import format_bytes
from engined.doctor.finding import Finding, ok, warning

_FLAGS = {
    "avx2": "AVX2",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512-VNNI",
    "avx512_bf16": "AVX512-BF16",
    "amx_bf16": "AMX-BF16",
    "amx_int8": "AMX-INT8",
    "asimddp": "dot products",
    "bf16": "BF16",
    "i8mm": "I8MM",
    "sve": "SVE",
}
"""Those that decide which kernels run, as /proc/cpuinfo and as people call them."""
_LITTLE_MEMORY = 1 << 30
"""Bytes: the default model with a small KV cache."""
_NEEDED_FILES = 4096 + 256
"""Connections by default, and what else a frontend has open."""


def check_machine(root: Path = Path("/")) -> list[Finding]:
    """One finding for each part."""
    return [_cpu(root), _cores(root), _memory(root), _huge_pages(root), _open_files(), _address_space()]


def _cpu(root: Path) -> Finding:
    flags = cpu_flags(root)
    known = [name for flag, name in _FLAGS.items() if flag in flags]
    text = f"{cpu_model(root) or platform.machine()}: {', '.join(known) or 'no vector instructions of note'}"
    if platform.machine() == "x86_64" and "avx2" not in flags:
        return warning("CPU", text, "without AVX2 all is slow: in a virtual machine, pass on the host's CPU model")
    return ok("CPU", text)


def _cores(root: Path) -> Finding:
    machine, mine, quota = os.cpu_count() or 1, len(os.sched_getaffinity(0)), cpu_quota(root)
    text = f"computes on {allowed_cpus(root)} of {machine}"
    if mine < machine:
        text += f", affinity allows {mine}"
    if quota is not None:
        text += f", the cgroup allows {quota:g}"
    if quota is not None and quota < 1:
        return warning("cores", text, "every step waits for the cgroup's next period: give it one CPU or more")
    return ok("cores", text)


def _memory(root: Path) -> Finding:
    available, free = available_memory(root), free_memory(root)
    text = f"{format_bytes(available)} free"
    if available < free:
        text += f": limited by the cgroup, the machine has {format_bytes(free)}"
    if available < _LITTLE_MEMORY:
        return warning("memory", text, "end what uses it, or give the container more")
    return ok("memory", text)


def _huge_pages(root: Path) -> Finding:
    try:
        setting = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return warning("huge pages", "this kernel has none", "weights are read more slowly; take another kernel")
    chosen = setting.partition("[")[2].partition("]")[0]
    if chosen == "never":
        return warning(
            "huge pages",
            "never: weights are read through pages of 4 KiB, up to a third more slowly",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    return ok("huge pages", chosen)


def _open_files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _NEEDED_FILES:
        return warning(
            "open files",
            f"at most {hard}: fewer connections than --max-connections says",
            f"raise the hard limit to {_NEEDED_FILES} (ulimit -Hn, LimitNOFILE=, docker run --ulimit nofile=)",
        )
    return ok("open files", "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}")


def _address_space() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        return warning(
            "address space",
            f"at most {format_bytes(soft)} a process: files are mapped, and mapping more fails",
            "ulimit -v unlimited",
        )
    return ok("address space", "no limit")
