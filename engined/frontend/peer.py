"""Who is at the other end of the Unix socket. Frontend process; each accepted connection asks once.

The kernel checks the rights of the socket's file when somebody connects. This is the second lock: it holds even where
the file's mode, or the folder around it, lets in more than it should.
"""

import logging
import os
import socket
import stat
import struct
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("=iII")
"""struct ucred: pid, uid, gid."""
_SO_PEERGROUPS = 59
_MAX_GROUPS_SIZE = 1024
"""Bytes that Python's getsockopt takes: 256 groups."""


@dataclass(frozen=True, slots=True)
class PeerRule:
    """Admits this user, root, and the members of the socket's group if its file lets them write."""

    owner: int
    group: int | None

    def admits(self, connection: socket.socket) -> bool:
        """Whether the process that connected may talk to us. It is judged by what it was when it connected."""
        _, uid, gid = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid in (0, self.owner) or (self.group is not None and self.group in (gid, *_other_groups(connection))):
            return True
        logger.warning("refused a connection to the Unix socket from uid %d, gid %d: see --uds-group", uid, gid)
        return False


def peer_rule(listener: socket.socket) -> PeerRule | None:
    """The rule of a listening socket; None for TCP, which knows no users."""
    if listener.family != socket.AF_UNIX:
        return None
    try:
        status = os.stat(listener.getsockname())
    except OSError:
        return PeerRule(os.geteuid(), None)
    return PeerRule(os.geteuid(), status.st_gid if status.st_mode & stat.S_IWGRP else None)


def _other_groups(connection: socket.socket) -> tuple[int, ...]:
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS_SIZE)
    except OSError:
        return ()
    return struct.unpack(f"={len(packed) // 4}I", packed)
