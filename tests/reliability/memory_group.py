"""A control group with hardly any memory: the kernel's OOM killer ends whoever is moved into it and goes on working."""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

LIMIT = 64 << 10
"""Bytes. What a process holds already is not counted again, so this is what it may take in addition."""


@dataclass(frozen=True)
class Hierarchy:
    """Where the system keeps its groups, and what their files are called."""

    root: Path
    limit: str
    counts: str
    """Has a line `oom_kill N`."""


HIERARCHIES = (
    Hierarchy(Path("/sys/fs/cgroup"), "memory.max", "memory.events"),
    Hierarchy(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"),
)


class MemoryGroup:
    """One such group."""

    def __init__(self, folder: Path, hierarchy: Hierarchy) -> None:
        self._folder = folder
        self._hierarchy = hierarchy

    def take(self, pid: int) -> None:
        """Move a process into it."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def num_killed(self) -> int:
        """Processes of the group that the OOM killer has ended."""
        lines = (self._folder / self._hierarchy.counts).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Skips the test where groups cannot be made: it takes root, and a system that lets it."""
    for hierarchy in HIERARCHIES:
        folder = hierarchy.root / f"engined-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / hierarchy.limit).exists():
                (folder / hierarchy.limit).write_text(str(LIMIT))
                yield MemoryGroup(folder, hierarchy)
                return
        finally:
            remove(folder)
    pytest.skip("no control groups of memory can be made here")


def remove(folder: Path) -> None:
    """A group that had processes is busy until the last of them is reaped."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            return folder.rmdir()
        time.sleep(0.05)
