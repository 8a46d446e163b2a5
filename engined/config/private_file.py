"""Files with secrets: keys of callers, the key of a certificate. Read by the supervisor and by frontends."""

import os
import stat
from pathlib import Path

from engined.errors import ConfigError

MAX_FILE_SIZE = 1 << 20
_OTHERS = stat.S_IROTH | stat.S_IWOTH


def read_private_file(path: Path, flag: str) -> str:
    """The text of a small file that `flag` names.

    Raises ConfigError if it cannot be read, or if users other than its owner and group can read or change it.
    """
    try:
        # Not blocking: a pipe would hold up whoever reads, for as long as nobody writes.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            _check_status(path, flag, os.fstat(fd))
            return file.read(MAX_FILE_SIZE).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{flag}: {path} is not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror}") from None


def _check_status(path: Path, flag: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{flag}: {path} is not a regular file")
    if status.st_mode & _OTHERS:
        raise ConfigError(
            f"{flag}: {path} holds secrets, and every user of this machine can open it: chmod o-rwx {path}"
        )
    if status.st_size > MAX_FILE_SIZE:
        raise ConfigError(f"{flag}: {path} is larger than {MAX_FILE_SIZE} bytes")
