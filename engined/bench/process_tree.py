"""What running processes cost, read from /proc: CPU seconds of one, memory of one and all below it."""

import os
from dataclasses import dataclass
from pathlib import Path

_USER_TIME_FIELD, _SYSTEM_TIME_FIELD = 11, 12
"""In /proc/PID/stat, counted behind the name, which may hold anything."""
CPU_RESOLUTION = 1 / os.sysconf("SC_CLK_TCK")
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes, summed over processes."""

    rss: int
    """What several of them share counts for each."""
    pss: int
    """What several of them share counts once, here or elsewhere."""


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads so far. Raises OSError if the process is gone."""
    fields = _stat_fields(pid)
    return (int(fields[_USER_TIME_FIELD]) + int(fields[_SYSTEM_TIME_FIELD])) * CPU_RESOLUTION


def tree_memory(pid: int) -> Memory:
    """Of a process and all that descend from it."""
    rss, pss = 0, 0
    for member in _descendants(pid):
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has just ended
        sizes = {key: int(value.split()[0]) * 1024 for key, _, value in (line.partition(":") for line in lines[1:])}
        rss += sizes["Rss"]
        pss += sizes["Pss"]
    return Memory(rss=rss, pss=pss)


def _descendants(pid: int) -> list[int]:
    """The process first."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(_stat_fields(int(entry.name))[1])
            except OSError:
                continue
    found = [pid]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return found


def _stat_fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
