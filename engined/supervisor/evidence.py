"""What is kept of a child that hung: the stacks of its threads, and of those of its own children. Main process."""

import contextlib
import os
import signal
import time
from pathlib import Path

from engined import faults
from engined.process.launch import ChildProcess
from engined.process.traces import TRACE_SIGNAL
from engined.supervisor.reaper import parents

_SECONDS = 1.0
_QUIET = 0.15
"""Seconds without a new line after which the stacks are whole."""
_POLL = 0.02
MAX_FILES = 20


def collect_traces(child: ChildProcess) -> str:
    """Ask a child and its children for their stacks, and wait for them a moment. Stopped processes are woken for it."""
    for pid in [child.pid, *_descendants(child.pid)]:
        _ask(pid)
    deadline, size, since = time.monotonic() + _SECONDS, child.traces.size(), time.monotonic()
    while (now := time.monotonic()) < deadline and not (size and now - since > _QUIET):
        time.sleep(_POLL)
        if child.traces.size() != size:
            size, since = child.traces.size(), now
    return child.traces.take()


def save(folder: Path, name: str, text: str) -> Path | None:
    """Keep `text` in a new file of `folder`, in which the oldest give way. None if the disk does not take it."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = folder / f"{stamp}-{name.replace(' ', '-')}-{os.getpid()}.txt"
    try:
        faults.point("disk")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(text)
        for old in sorted(folder.glob("*.txt"))[:-MAX_FILES]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def _ask(pid: int) -> None:
    """Signal a process that is prepared for it: to any other the signal would be the end."""
    if not _catches(pid, TRACE_SIGNAL):
        return
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            # Checked again through the descriptor's process: the number may have changed hands in between.
            if _catches(pid, TRACE_SIGNAL):
                signal.pidfd_send_signal(pidfd, TRACE_SIGNAL)
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        finally:
            os.close(pidfd)


def _catches(pid: int, number: signal.Signals) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _descendants(pid: int) -> list[int]:
    parent_of = parents()
    found = [pid]
    for candidate in found:
        found += [child for child, parent in parent_of.items() if parent == candidate]
    return found[1:]
