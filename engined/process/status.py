"""What a child tells its parent on its status pipe: progress, ready, or the cause of its failure.

One JSON document a line. The parent passes a failure on upward, so that the last log line of the daemon is its cause.
A parent that does not read loses reports of progress; it holds nobody up.
"""

import os
import select
from dataclasses import dataclass, field
from typing import Any, Literal

from engined.errors import EnginedError
from engined.protocol.codec import decode, encode

_PATIENCE = 5.0
"""Seconds that the last words of a child wait for a parent that has other things to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStatus:
    """One report of a child."""

    kind: Literal["progress", "ready", "failed"]
    text: str = ""
    """The phase, or the cause of the failure."""
    detail: str = ""
    """How far the phase has come."""
    exit_code: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def failure_status(name: str, error: BaseException) -> ChildStatus:
    """Describe `error`, raised in the process `name`, for the parent.

    An error of our own tree is shown as it is; a cause that a child of this child reported already names that process.
    """
    if isinstance(error, EnginedError):
        return ChildStatus(kind="failed", text=str(error), exit_code=error.exit_code)
    return ChildStatus(kind="failed", text=f"{name}: {type(error).__name__}: {error}", exit_code=70)


class StatusWriter:
    """The child's end of the pipe. A parent that is gone is not an error: the lifeline deals with it."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    def send(self, status: ChildStatus) -> None:
        """Write one line; lines stay below PIPE_BUF, so that they arrive whole."""
        line = encode(status)
        if len(line) > 4000:
            line = encode(ChildStatus(kind=status.kind, text=status.text[:1500], exit_code=status.exit_code))
        try:
            self._write(line + b"\n", is_expendable=status.kind == "progress")
        except BrokenPipeError:
            return

    def _write(self, line: bytes, *, is_expendable: bool) -> None:
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            if is_expendable:
                return
            poller = select.poll()
            poller.register(self._fd, select.POLLOUT)
            if poller.poll(_PATIENCE * 1000):
                os.write(self._fd, line)


class StatusReader:
    """The parent's end of the pipe, non-blocking."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._buffer = b""

    def read(self) -> list[ChildStatus]:
        """All reports that have arrived. Raises ProtocolError if the child wrote something else."""
        while True:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            if not data:
                break
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return [decode(line, ChildStatus) for line in lines]

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.fd)
