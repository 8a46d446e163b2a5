"""The public Unix socket: who may take its path, and who may connect. Main process; `listeners` opens it."""

import contextlib
import grp
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from engined.errors import ListenError
from engined.ipc.paths import check_socket_path, default_uds_path, socket_lock

_BACKLOG = 1024
_CONNECT_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class UnixListener:
    """A bound Unix socket, and the file that it made."""

    socket: socket.socket
    path: Path
    file: tuple[int, int] | None
    """Device and inode; None if the file is not ours."""

    def close(self) -> None:
        """Close the socket, and remove its file if we made it and no other server has put its own there."""
        self.socket.close()
        if self.file is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if _identity(self.path.lstat()) == self.file:
                self.path.unlink()


def listen_unix(path: Path, group: str | None = None) -> UnixListener:
    """Listen on `path`, replacing the socket of a server that is gone. Only this user may connect, and the members of
    `group` (a name or a number).

    Raises ListenError if a server answers there, if the path holds anything but a socket of this user, or if this user
    cannot give a file to the group.
    """
    check_socket_path(path)
    group_id = None if group is None else _group_id(group)
    with socket_lock(default_uds_path().parent):
        _remove_stale_socket(path)
        bound = _bind(path, 0o600 if group_id is None else 0o660)
        try:
            if group_id is not None:
                # Nobody can connect before `listen`, so the group that the file had until now does not matter.
                os.chown(path, -1, group_id, follow_symlinks=False)
            bound.socket.listen(_BACKLOG)
        except OSError as error:
            bound.close()
            remedy = "" if group is None else f"; is this user a member of the group of --uds-group {group}?"
            raise ListenError(f"cannot listen on {path}: {error.strerror}{remedy}") from None
    return bound


def adopt_unix(given: socket.socket) -> UnixListener:
    """A socket that somebody else has bound, and whose file is theirs."""
    return UnixListener(given, Path(os.fsdecode(given.getsockname())), None)


def _bind(path: Path, mode: int) -> UnixListener:
    """A socket that does not listen yet, with a file of exactly this mode."""
    unbound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous_umask = os.umask(0o777 & ~mode)
    try:
        unbound.bind(os.fspath(path))
        return UnixListener(unbound, path, _identity(path.lstat()))
    except OSError as error:
        unbound.close()
        raise ListenError(f"cannot listen on {path}: {error.strerror}") from None
    finally:
        os.umask(previous_umask)


def check_unanswered(path: Path) -> None:
    """Raises ListenError if a server answers at `path`. Leaves everything as it is."""
    if _is_answering(path):
        raise ListenError(f"a server already listens on {path}: stop it, or choose another --uds")


def _remove_stale_socket(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        raise ListenError(f"{path} exists and is not a socket of this user: choose another --uds, or remove it")
    check_unanswered(path)
    path.unlink(missing_ok=True)


def _is_answering(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A full backlog, for one: somebody holds it.
            return True
    return True


def _group_id(group: str) -> int:
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise ListenError(f"--uds-group {group}: there is no such group: create it, or name another") from None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
