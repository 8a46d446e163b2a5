"""What the supervisor tells its children while they run: a page of shared memory that it writes and they read.

A frontend answers probes from it, and tells clients how long an engine that is starting again will take. Reading it
costs no system call, and a supervisor that is busy delays nobody.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from typing import Literal

from engined.protocol.codec import decode, encode

_HEADER = struct.Struct("<QQ")
_SIZE = mmap.PAGESIZE
_MAX_TEXT = 1000
_MAX_TRIES = 1000

DaemonPhase = Literal["starting", "serving", "recovering", "stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """How the daemon is doing."""

    phase: DaemonPhase
    text: str = ""
    """What it is doing, or what has happened: a sentence without its full stop."""
    retry_after: float = 5.0
    """Seconds after which a client that is turned away may try again."""
    was_ready: bool = False
    """Whether it has ever served."""
    num_restarts: int = 0
    """Of children, since the daemon started."""
    start_time: float | None = None
    """When that was, in seconds of CLOCK_MONOTONIC; None without a supervisor."""
    num_reloads: int = 0
    """Times that the children were told to read their files again."""
    num_log_lines_dropped: int = 0
    """By all processes, since the daemon started."""


def serving_state() -> DaemonState:
    """The state where there is no supervisor: all is well as long as the engine is."""
    return DaemonState(phase="serving", was_ready=True)


class Board:
    """The supervisor's side. Owns the memory; children inherit `fd`."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("engined-board", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, _SIZE)
        self._page = mmap.mmap(self.fd, _SIZE)
        self._version = 0
        self.publish(DaemonState(phase="starting"))

    def publish(self, state: DaemonState) -> None:
        """Replace what is written there."""
        payload = encode(state)
        assert len(payload) <= _SIZE - _HEADER.size, "a state has short texts"
        # Odd while it is being written, so that a reader who comes in between looks again.
        self._page[: _HEADER.size] = _HEADER.pack(self._version + 1, len(payload))
        self._page[_HEADER.size : _HEADER.size + len(payload)] = payload
        self._version += 2
        self._page[: _HEADER.size] = _HEADER.pack(self._version, len(payload))

    def close(self) -> None:
        """Release the memory; what children have mapped they keep."""
        self._page.close()
        os.close(self.fd)


class BoardReader:
    """A child's side."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _SIZE, prot=mmap.PROT_READ)
        self._version = -1
        self._state = DaemonState(phase="starting")

    def read(self) -> DaemonState:
        """The newest state that is whole."""
        for _ in range(_MAX_TRIES):
            version, length = _HEADER.unpack_from(self._page, 0)
            if version == self._version:
                break
            payload = self._page[_HEADER.size : _HEADER.size + length]
            if version % 2 == 0 and _HEADER.unpack_from(self._page, 0)[0] == version:
                self._version, self._state = version, decode(payload, DaemonState)
                break
        return self._state


def shorten(text: str) -> str:
    """A text that fits the board."""
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
