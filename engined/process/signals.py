"""Signals as readable events: handlers do nothing, the signal's number arrives on a descriptor that a loop reads.

A handler that has to wake the main thread can come a moment too early, just before the thread blocks; a descriptor
cannot. Used by the supervisor and by the engine core.
"""

import os
import signal
import socket
from types import FrameType, TracebackType
from typing import Any


class SignalInbox:
    """Collects some signals while the context is open. Opened and closed by the main thread; any thread may read."""

    def __init__(self, *signals: signal.Signals) -> None:
        self._signals = signals
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_fd = -1

    def fileno(self) -> int:
        """Descriptor that is readable when a signal has arrived."""
        return self._reader.fileno()

    def take(self) -> list[int]:
        """Numbers of the signals that have arrived since the last call."""
        try:
            return list(os.read(self._reader.fileno(), 4096))
        except BlockingIOError:
            return []

    def __enter__(self) -> "SignalInbox":
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._signals:
            # Without a Python handler the interpreter does not write to the wake-up descriptor.
            self._previous[number] = signal.signal(number, _ignore)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._reader.close()
        self._writer.close()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Let the wake-up descriptor do its work."""
