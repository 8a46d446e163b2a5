"""The public listening sockets. The supervisor opens them before the model loads and hands them to the frontend.

So a taken port is known at once, and a client that connects while the model loads gets an answer.
"""

import contextlib
import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from engined.config.schema import ServerConfig
from engined.errors import ListenError
from engined.ipc.paths import check_socket_path, default_uds_path, socket_lock

_BACKLOG = 1024
_CONNECT_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class UnixListener:
    """A bound Unix socket, and the identity of the file that it made."""

    socket: socket.socket
    path: Path
    device: int
    inode: int

    def close(self) -> None:
        """Close the socket, and remove its file unless another server has put its own there."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):
            status = self.path.lstat()
            if (status.st_dev, status.st_ino) == (self.device, self.inode):
                self.path.unlink()


class Listeners:
    """All public sockets of one daemon. Use it as a context manager."""

    def __init__(self, config: ServerConfig) -> None:
        self.tcp = None if config.host == "none" else listen_tcp(config.host, config.port)
        try:
            self.unix = None if config.uds == "none" else listen_unix(_uds_path(config))
        except BaseException:
            if self.tcp is not None:
                self.tcp.close()
            raise

    @property
    def addresses(self) -> list[str]:
        """Where clients find the server, for the log."""
        addresses = []
        if self.tcp is not None:
            host, port = self.tcp.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            addresses.append(f"http://{shown}:{port}")
        if self.unix is not None:
            addresses.append(f"unix:{self.unix.path}")
        return addresses

    @property
    def fds(self) -> dict[str, int]:
        """Descriptors for the frontend, by the name that it knows them by."""
        fds = {}
        if self.tcp is not None:
            fds["http"] = self.tcp.fileno()
        if self.unix is not None:
            fds["uds"] = self.unix.socket.fileno()
        return fds

    def __enter__(self) -> "Listeners":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close our side of all sockets. Idempotent; once the frontend closes its own, connecting is refused."""
        if self.tcp is not None:
            self.tcp.close()
        if self.unix is not None:
            self.unix.close()


def listen_tcp(host: str, port: int) -> socket.socket:
    """Listen on the first address of `host`. Raises ListenError that names host and port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ListenError(f"--host {host}: cannot resolve it: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Only a listening socket keeps others off the port; bound ones with SO_REUSEADDR may share it.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        remedy = "; stop the other server, or choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}{remedy}") from None
    return listener


def listen_unix(path: Path) -> UnixListener:
    """Listen on `path`, replacing the socket of a server that is gone.

    Raises ListenError if a server answers there, or if the path holds anything but a socket of this user.
    """
    check_socket_path(path)
    with socket_lock(default_uds_path().parent):
        _remove_stale_socket(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous_umask = os.umask(0o177)
        try:
            listener.bind(os.fspath(path))
            listener.listen(_BACKLOG)
            status = path.lstat()
        except OSError as error:
            listener.close()
            raise ListenError(f"cannot listen on {path}: {error.strerror}") from None
        finally:
            os.umask(previous_umask)
    return UnixListener(listener, path, status.st_dev, status.st_ino)


def _uds_path(config: ServerConfig) -> Path:
    return default_uds_path() if config.uds is None else Path(config.uds).absolute()


def _remove_stale_socket(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        raise ListenError(f"{path} exists and is not a socket of this user: choose another --uds, or remove it")
    if _is_answering(path):
        raise ListenError(f"a server already listens on {path}: stop it, or choose another --uds")
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
