"""The service manager that started this process, if there is one: systemd, or whatever speaks its protocol.

Without its variables in the environment everything here does nothing. Main process only: systemd listens to the main
pid alone, and children are started without these variables. The protocol is in sd_notify(3), sd_listen_fds(3) and
sd_watchdog_enabled(3).
"""

import contextlib
import os
import socket
from collections.abc import Mapping

from engined.errors import ListenError

NOTIFY_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_FIRST_FD = 3


class ServiceManager:
    """Takes our notifications. `watchdog_interval` are the seconds within which it wants to hear that we live; None
    if it does not ask."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL of an abstract name. Other kinds (vsock:) reach virtual machines' hosts only.
        self._address = address.replace("@", "\0", 1) if address.startswith(("/", "@")) else ""
        self.watchdog_interval = _watchdog_interval(environ) if self._address else None

    def __bool__(self) -> bool:
        return bool(self._address)

    def notify(self, **assignments: str | int) -> None:
        """Send NAME=value lines as one message. It is lost if nobody reads: telling must never stop us."""
        if not self._address:
            return
        text = "\n".join(f"{name}={_one_line(value)}" for name, value in assignments.items())
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A manager that does not read must not block the supervisor's loop.
            sender.setblocking(False)
            sender.sendto(text.encode(), self._address)


def inherited_sockets(environ: Mapping[str, str]) -> list[tuple[str, socket.socket]]:
    """The listening stream sockets that the manager opened for this process, each with its name, "" if it has none.

    They are closed on exec from now on. Raises ListenError for a descriptor that is not such a socket.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = _whole_number(environ.get("LISTEN_FDS", ""))
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    return [(names[index] if index < len(names) else "", _take(_FIRST_FD + index)) for index in range(count or 0)]


def _take(fd: int) -> socket.socket:
    try:
        taken = socket.socket(fileno=fd)
        taken.set_inheritable(False)
        is_listening = taken.type is socket.SOCK_STREAM and taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ListenError(f"LISTEN_FDS counts descriptor {fd}, which is no socket: {error.strerror}") from None
    if not is_listening:
        taken.close()
        raise ListenError(
            f"descriptor {fd} is not a listening stream socket: its .socket unit needs ListenStream= and Accept=no"
        )
    return taken


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = _whole_number(environ.get("WATCHDOG_USEC", ""))
    return microseconds / 1e6 if microseconds else None


def _whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _one_line(value: str | int) -> str:
    return " ".join(str(value).split())
