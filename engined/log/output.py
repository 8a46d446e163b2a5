"""Where the lines of the log go: a descriptor that may be full, gone or never read. All processes; used by the handler.

A log must neither stop nor end the daemon. A line that cannot be written within a moment is lost, and whoever reads
nothing costs that moment once, not once a line.
"""

import contextlib
import os
import select
import socket
import stat

PATIENCE = 0.05
"""Seconds that a line waits for a reader that is slow."""


class LogOutput:
    """Writes whole lines to the file, pipe, terminal or socket behind `fd`, whose flags other processes share."""

    def __init__(self, fd: int) -> None:
        mode = _mode(fd)
        self._fd = _open_without_blocking(fd) if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) else os.dup(fd)
        self._socket = socket.socket(fileno=self._fd) if stat.S_ISSOCK(mode) else None
        self._is_stuck = False
        self._is_within_line = False

    def write(self, text: str) -> bool:
        """Write one or several lines that end with a line break; whether all of them got out."""
        data = text.encode(errors="backslashreplace")
        is_written = self._write_all(b"\n" + data if self._is_within_line else data)
        if is_written:
            self._is_stuck = self._is_within_line = False
        return is_written

    def close(self) -> None:
        """Release our own descriptor; `fd` stays open."""
        if self._socket is not None:
            self._socket.close()
        else:
            os.close(self._fd)

    def _write_all(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            try:
                size = self._send(view)
            except BlockingIOError:
                if not self._wait():
                    return False
                continue
            except OSError:  # the reader is gone, the disk is full: whatever it is, it is not worth the daemon
                return False
            view = view[size:]
            self._is_within_line = bool(view)
        return True

    def _send(self, data: memoryview) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        return os.write(self._fd, data)

    def _wait(self) -> bool:
        """Wait for room; False if none came, or none came the last time either."""
        if self._is_stuck:
            return False
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        self._is_stuck = not poller.poll(PATIENCE * 1000)
        return not self._is_stuck


def _mode(fd: int) -> int:
    """What kind of file `fd` is. A closed one is filled, lest a connection gets its number, and the log with it."""
    try:
        return os.fstat(fd).st_mode
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != fd:
            os.dup2(null, fd)
            os.close(null)
        return os.fstat(fd).st_mode


def _open_without_blocking(fd: int) -> int:
    """The same pipe or terminal under flags of our own: those of `fd` belong to our children and our parent too."""
    with contextlib.suppress(OSError):
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(fd)
