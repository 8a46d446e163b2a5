"""Signs of life that cost nothing: a page of shared memory that a child writes and its parent reads.

A beat comes from the loop that does the work (a step, a turn of the event loop, a tensor that was read), never from a
helper thread, so that a loop which hangs cannot look alive. The parent decides how old a beat may be in which phase.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

REST_INTERVAL = 2.0
"""Seconds between two signs of life of a loop at rest. One that has work gives one at each step."""

_LAYOUT = struct.Struct("<QQd")
_SIZE = mmap.PAGESIZE


class Phase(IntEnum):
    """What a process was doing when it gave its last sign of life."""

    STARTING = 0
    """Python starts and imports."""
    LOADING = 1
    """Reading weights, making kernels, warming up."""
    IDLE = 2
    """Waiting for work, and looking up now and then."""
    STEP = 3
    """Computing one step of the model."""
    SERVING = 4
    """An event loop that turns."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One sign of life."""

    count: int
    """Beats so far; 0 before the first one."""
    phase: Phase
    time: float
    """Seconds of CLOCK_MONOTONIC."""


class HeartbeatWriter:
    """The child's side."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _SIZE)
        self._count = 0

        self._phase = Phase.STARTING

    def beat(self, phase: Phase, at: float | None = None) -> None:
        """Say that this process lives and has just begun, or gone on with, `phase`. Any thread may call it.

        `at` is an earlier time (seconds of CLOCK_MONOTONIC) if the process speaks for others that it last heard then.
        """
        self._count += 1
        self._phase = phase
        # Packed first: `pack_into` clears what it is about to write, and a parent that looked in between would see a
        # beat of long ago.
        self._page[: _LAYOUT.size] = _LAYOUT.pack(self._count, phase, time.monotonic() if at is None else at)

    def repeat(self) -> None:
        """Say that it goes on with what it did."""
        self.beat(self._phase)


class HeartbeatReader:
    """The parent's side. Owns the memory; `fd` is for the child to inherit, and may be closed once it runs."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("engined-heartbeat", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, _SIZE)
        self._page = mmap.mmap(self.fd, _SIZE)
        # A child that never gets as far as its first beat is measured from here.
        _LAYOUT.pack_into(self._page, 0, 0, Phase.STARTING, time.monotonic())

    def read(self) -> Beat:
        """The last beat."""
        # Copied first, for the same reason as in `beat`: unpacking goes byte by byte.
        count, phase, seconds = _LAYOUT.unpack(self._page[: _LAYOUT.size])
        return Beat(count, Phase(phase), seconds)

    def close_fd(self) -> None:
        """Close the descriptor; the memory stays readable."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Release everything."""
        self.close_fd()
        self._page.close()
