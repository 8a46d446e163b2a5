"""How a child dies with its parent: PR_SET_PDEATHSIG, and a pipe whose write end only the parent holds.

Either alone has a gap. The death signal follows the parent's spawning thread and is lost across some execs; the pipe
needs a thread of ours to run, which a native call that keeps the GIL can delay. Runs in every child.
"""

import ctypes
import os
import signal
import threading

_PR_SET_PDEATHSIG = 1


def arm_parent_death_signal(parent_pid: int) -> None:
    """Ask the kernel to SIGKILL this process when its parent dies; exit now if the parent is already gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(70)


def watch_lifeline(fd: int) -> None:
    """Start the daemon thread that ends this process at once when the write end of `fd` closes."""

    def wait_for_end_of_file() -> None:
        try:
            os.read(fd, 1)
        finally:
            os._exit(70)

    threading.Thread(target=wait_for_end_of_file, name="lifeline", daemon=True).start()
