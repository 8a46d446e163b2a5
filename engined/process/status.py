"""What a child tells its parent on its status pipe: progress, ready, or the cause of its failure.

One JSON document a line. The parent passes a failure on upward, so that the last log line of the daemon is its cause.
"""

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from engined.errors import EnginedError
from engined.protocol.codec import decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStatus:
    """One report of a child."""

    kind: Literal["progress", "ready", "failed"]
    text: str = ""
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
        self._fd = fd

    def send(self, status: ChildStatus) -> None:
        """Write one line; lines stay below PIPE_BUF, so that they arrive whole."""
        line = encode(status)
        if len(line) > 4000:
            line = encode(ChildStatus(kind=status.kind, text=status.text[:1500], exit_code=status.exit_code))
        try:
            os.write(self._fd, line + b"\n")
        except BrokenPipeError:
            return


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
