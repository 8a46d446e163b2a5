"""Where sockets live: the public Unix socket of this user, and a private folder for the links inside one daemon.

Used by the supervisor (which creates them) and by clients (which look for the public one).
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engined.config.directories import runtime_directory
from engined.errors import ListenError

MAX_SOCKET_PATH = 107
"""Bytes that the kernel's sockaddr_un holds, less the final NUL."""

_PREFIX = "engined-"
_LOCK_NAME = "lock"
_BASE_LOCK_NAME = "sockets.lock"
"""Another name than that of any other lock that is held for long: somebody may have put all folders into one."""


def default_uds_path() -> Path:
    """The public socket of this user's daemon: engined.sock in the runtime folder, which is made if it is missing.

    Raises ListenError if the folder belongs to somebody else or others can reach into it.
    """
    return private_directory(runtime_directory(os.environ)) / "engined.sock"


def private_directory(path: Path) -> Path:
    """Make sure that `path` is a folder of ours with mode 0700. Raises ListenError if it is not."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise ListenError(f"cannot make the runtime folder {path}: {error.strerror}; set XDG_RUNTIME_DIR") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ListenError(
            f"{path} is not a folder that only this user can open (mode 0700): remove it, or set XDG_RUNTIME_DIR"
        )
    return path


def check_socket_path(path: Path) -> None:
    """Raise ListenError if the kernel could not take `path` as a socket address."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise ListenError(f"socket path {path} has {length} bytes, but the kernel takes {MAX_SOCKET_PATH}: shorten it")


@contextlib.contextmanager
def socket_lock(base: Path) -> Iterator[None]:
    """Keep other daemons of this user from creating or sweeping sockets in `base` meanwhile."""
    fd = os.open(base / _BASE_LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class RuntimeDirectory:
    """A private folder `engined-XXXX` that lives as long as its daemon.

    The daemon holds a lock on a file inside; a folder whose lock is free was left by a daemon that was killed, and the
    next one to start removes it. Use it as a context manager.
    """

    def __init__(self, base: Path | None = None) -> None:
        base = private_directory(runtime_directory(os.environ) if base is None else base)
        with socket_lock(base):
            _sweep(base)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            # Not inherited by children: the lock must end with this process, whatever becomes of them.
            self._lock_fd = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)

    def socket_path(self, name: str) -> Path:
        """Path for a socket `name` in the folder. Raises ListenError if it is too long for the kernel."""
        path = self.path / f"{name}.sock"
        check_socket_path(path)
        return path

    def __enter__(self) -> "RuntimeDirectory":
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)


def _sweep(base: Path) -> None:
    """Remove the folders of dead daemons. The caller holds the lock of `base`."""
    for folder in base.glob(f"{_PREFIX}*"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        try:
            fd = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(fd)
