"""Lines of the log that were lost, counted over all processes of a daemon. Every process; `setup` knows the counter.

The kernel adds them up: each process writes to one eventfd, which children inherit, and their root alone reads it. So
a loss outlives the process that had it, and costs the others nothing.
"""

import contextlib
import os


class LossCounter:
    """Adds in every process, reads in one."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd` is the descriptor of the parent's counter; None: a new one."""
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd
        self._total = 0

    def add(self) -> None:
        """A line was lost. Whatever goes wrong with counting must not reach those who log."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self.fd, 1)

    def read(self) -> int:
        """All losses so far. Reading takes them out of the descriptor, so only one process may."""
        with contextlib.suppress(OSError):  # nothing new
            self._total += os.eventfd_read(self.fd)
        return self._total

    def close(self) -> None:
        """Release the descriptor."""
        os.close(self.fd)
