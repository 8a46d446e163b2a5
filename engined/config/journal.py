"""Whether the log goes to systemd's journal. Called by every process when it sets its log up."""

import os
from collections.abc import Mapping

_STDERR = 2


def writes_to_journal(environ: Mapping[str, str], fd: int = _STDERR) -> bool:
    """Whether `fd` is the stream that `$JOURNAL_STREAM` (device:inode, see systemd.exec(5)) names.

    The variable alone says nothing: it is inherited by commands whose output goes elsewhere.
    """
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"
