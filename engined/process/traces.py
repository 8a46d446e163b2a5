"""Where a process writes the stacks of all its threads when it gets SIGUSR1: a file in memory that its parent reads.

The interpreter's own handler writes them, without running Python code, so that it works in a process whose threads are
all stuck. A rank shares the file of its core, which the supervisor then finds in one place.
"""

import faulthandler
import os
import signal

TRACE_SIGNAL = signal.SIGUSR1
MAX_BYTES = 256 << 10


def write_traces_on_signal(fd: int) -> None:
    """Arm this process."""
    faulthandler.register(TRACE_SIGNAL, file=fd, all_threads=True, chain=False)


class TraceFile:
    """The parent's side. Owns the descriptor, which the child inherits."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("engined-traces", os.MFD_CLOEXEC)
        # Several processes write into it, each behind what the others wrote.
        self._position = 0

    def size(self) -> int:
        """Bytes that were written and not taken yet."""
        return os.fstat(self.fd).st_size - self._position

    def take(self) -> str:
        """What was written since the last call, cut at MAX_BYTES."""
        size = self.size()
        data = os.pread(self.fd, min(size, MAX_BYTES), self._position)
        self._position += size
        return data.decode(errors="replace")

    def close(self) -> None:
        """Release the descriptor."""
        os.close(self.fd)
