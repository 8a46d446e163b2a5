"""Takes the connections of one listening socket. Frontend process; `server` has one for each socket.

asyncio's own server would do, were it not for three things: it re-listens with a backlog of its own, it knows no limit
of connections, and when descriptors run out it logs a traceback for each place in the backlog.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from engined.frontend.connection_limits import ConnectionLimits, ConnectionPlace
from engined.frontend.peer import peer_rule

logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64
"""Connections taken before the event loop gets its turn."""
RETRY_SECONDS = 0.5
"""Until the next try when the system has no descriptor for a connection."""
HANDSHAKE_SECONDS = 10.0
SHUTDOWN_SECONDS = 2.0
"""For the client's goodbye, on a TLS connection that is being closed."""

MakeConnection = Callable[[ConnectionPlace], asyncio.Protocol]
"""The protocol of a new connection, which gives its place back when the connection is lost."""


class Acceptor:
    """Accepts until it is closed. Whoever finds no room is disconnected at once."""

    def __init__(
        self,
        listener: socket.socket,
        make_connection: MakeConnection,
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`listener` listens already, and belongs to the acceptor from now on; with `tls` it speaks nothing else."""
        self._listener = listener
        self._tls = tls
        self._peer_rule = peer_rule(listener)
        self._make_connection = make_connection
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept_waiting)

    def close(self) -> None:
        """Accept no more. Idempotent."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def _accept_waiting(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._admit(connection, address)

    def _admit(self, connection: socket.socket, address: object) -> None:
        connection.setblocking(False)
        if self._peer_rule is not None and not self._peer_rule.admits(connection):
            connection.close()
            return
        place = self._limits.take(address)
        if place is None:
            logger.debug("refused a connection: there are too many")
            connection.close()
            return
        task = self._loop.create_task(self._open(connection, place))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _pause(self, error: OSError) -> None:
        """Leave those who wait in the kernel's queue for a moment: the descriptor stays readable, so we would spin."""
        logger.warning("cannot accept connections, trying again: %s", error.strerror)
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._accept_waiting)

    async def _open(self, connection: socket.socket, place: ConnectionPlace) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_connection(place),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=None if self._tls is None else SHUTDOWN_SECONDS,
            )
        except OSError as error:
            # No TLS from the client, or it has gone already.
            place.leave()
            logger.debug("a connection was not opened: %s", error)
        except BaseException:
            place.leave()
            connection.close()
            raise
