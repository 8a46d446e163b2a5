"""Adoption of orphans: when an engine core dies, its ranks become children of the supervisor, which reaps them.

They end by themselves (death signal and lifeline); here they only must not stay behind as zombies.
"""

import ctypes
import logging
import os
import signal
import time
from collections.abc import Collection

logger = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_POLL_INTERVAL = 0.02


def become_subreaper() -> None:
    """Ask the kernel to give orphaned descendants to this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_orphans(own_pids: Collection[int]) -> None:
    """Reap every ended child that is not one of `own_pids`: those belong to their ChildProcess."""
    for pid in _child_pids():
        if pid not in own_pids:
            _reap(pid)


def end_orphans(timeout: float) -> None:
    """Wait until no orphan is left, at most `timeout` seconds; kill what remains. No child of our own may be left."""
    if pids := _reap_until(time.monotonic() + timeout):
        logger.warning("killing processes that a dead child left behind: %s", pids)
        for pid in pids:
            # Our child and not reaped, so the number still means this process.
            os.kill(pid, signal.SIGKILL)
        _reap_until(time.monotonic() + timeout)


def _reap_until(deadline: float) -> list[int]:
    """Reap children until none is left or the deadline has passed; returns those that are left."""
    while _has_children():
        reap_orphans(())
        if time.monotonic() >= deadline:
            return _child_pids()
        time.sleep(_POLL_INTERVAL)
    return []


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_orphans(own_pids: Collection[int]) -> None:
    """SIGKILL what a dead child has left behind: children of ours that are none of `own_pids`."""
    for pid in _child_pids():
        if pid not in own_pids:
            # Our child and not reaped, so the number still means this process.
            os.kill(pid, signal.SIGKILL)


def parents() -> dict[int, int]:
    """The parent of every process of this machine.

    A scan of /proc: the kernel's own list (/proc/self/task/*/children) is a build option that is not everywhere.
    """
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                # "pid (command) state ppid ...": the command may hold spaces and parentheses.
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found


def _child_pids() -> list[int]:
    """Direct children of this process, adopted ones and zombies included."""
    return [pid for pid, parent in parents().items() if parent == os.getpid()]


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
