"""Files that are there whole or not at all, whatever happens while they are written. Frontend process."""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from engined import faults

LOCK_NAME = "lock"
UNFINISHED_SUFFIX = ".tmp"


class DataDirectory:
    """The folder of one daemon's files and batches, locked against other daemons until this process ends."""

    def __init__(self, path: Path) -> None:
        """Make the folder, lock it, and remove what was being written when its last daemon was killed.

        Raises BlockingIOError if another daemon has it, OSError if it cannot be used.
        """
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.files = path / "files"
            self.batches = path / "batches"
            for folder in (self.files, self.batches):
                folder.mkdir(mode=0o700, exist_ok=True)
                for unfinished in folder.glob(f"*{UNFINISHED_SUFFIX}"):
                    shutil.rmtree(unfinished)
        except BaseException:
            os.close(self._lock_fd)
            raise

    def close(self) -> None:
        """Let another daemon have it."""
        os.close(self._lock_fd)


class NewFolder:
    """A folder that appears under its name once everything in it is on the disk, or never. Use it as a context manager
    and fill `path`; leaving the block without `commit` removes it."""

    def __init__(self, final_path: Path) -> None:
        self._final_path = final_path
        self.path = final_path.with_name(final_path.name + UNFINISHED_SUFFIX)

    def __enter__(self) -> "NewFolder":
        self.path.mkdir(mode=0o700)
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self) -> None:
        """Give the folder its name. What is in it must have been synced."""
        sync_folder(self.path)
        self.path.rename(self._final_path)
        sync_folder(self._final_path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file by one with this content. Raises OSError, and then the old one is still there."""
    unfinished = path.with_name(path.name + UNFINISHED_SUFFIX)
    faults.point("disk")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder, so that no half of it is ever seen under its name."""
    unfinished = path.with_name(path.name + UNFINISHED_SUFFIX)
    path.rename(unfinished)
    with contextlib.suppress(OSError):  # what is left goes when the daemon starts next
        shutil.rmtree(unfinished)


def sync_folder(path: Path) -> None:
    """Let the names in a folder outlive a power failure."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
