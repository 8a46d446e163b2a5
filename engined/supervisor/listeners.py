"""The public listening sockets. The supervisor opens them before the model loads and hands them to the frontend.

So a taken port is known at once, and a client that connects while the model loads gets an answer. Sockets that the
service manager opened for us go before our own: they are used as they are, and outlive this daemon.
"""

import errno
import logging
import socket
from collections.abc import Sequence
from pathlib import Path

from engined.config.schema import ServerConfig
from engined.errors import ListenError
from engined.ipc.paths import default_uds_path
from engined.supervisor.unix_listener import UnixListener, adopt_unix, check_unanswered, listen_unix

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_KINDS = {socket.AF_INET: "http", socket.AF_INET6: "http", socket.AF_UNIX: "uds"}


class Listeners:
    """All public sockets of one daemon. Use it as a context manager."""

    def __init__(self, config: ServerConfig, inherited: Sequence[tuple[str, socket.socket]] = ()) -> None:
        """`inherited` are sockets that are listening already, with their names: of TCP and of Unix one each at most.
        Raises ListenError for what cannot be used or taken."""
        self._scheme = "http" if config.tls_certificate is None else "https"
        given = _sort_inherited(inherited)
        self.tcp = given.get("http") or _own_tcp(config)
        try:
            self.unix = adopt_unix(given["uds"]) if "uds" in given else _own_unix(config)
        except BaseException:
            if self.tcp is not None:
                self.tcp.close()
            raise
        if "http" in given:
            logger.info("HTTP is on the service manager's %s: --host and --port do not count", self.addresses[0])
        if "uds" in given:
            logger.info("the Unix socket is the service manager's: --uds and --uds-group do not count")

    @property
    def addresses(self) -> list[str]:
        """Where clients find the server, for the log."""
        addresses = []
        if self.tcp is not None:
            host, port = self.tcp.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            addresses.append(f"{self._scheme}://{shown}:{port}")
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


def check_no_other_server(config: ServerConfig) -> None:
    """Raises ListenError if a server answers on the Unix socket of `config`: known before anything is prepared.

    Nothing is opened yet, so whoever is quicker may still take the path. A port is not tried: anybody may have it.
    """
    path = _unix_path(config)
    if path is not None and path.is_socket():
        check_unanswered(path)


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


def _own_tcp(config: ServerConfig) -> socket.socket | None:
    return None if config.host == "none" else listen_tcp(config.host, config.port)


def _own_unix(config: ServerConfig) -> UnixListener | None:
    path = _unix_path(config)
    return None if path is None else listen_unix(path, config.uds_group)


def _unix_path(config: ServerConfig) -> Path | None:
    if config.uds == "none":
        return None
    return default_uds_path() if config.uds is None else Path(config.uds).absolute()


def _sort_inherited(inherited: Sequence[tuple[str, socket.socket]]) -> dict[str, socket.socket]:
    """Inherited sockets as "http" and "uds": what they are is in their family, and a name must not contradict it."""
    found: dict[str, socket.socket] = {}
    for name, given in inherited:
        kind = _KINDS.get(given.family)
        if kind is None or (name in _KINDS.values() and name != kind):
            raise ListenError(f"the socket {name!r} that was handed over is of family {given.family.name}")
        if kind in found:
            raise ListenError(f"two sockets for {kind} were handed over, but one is used: keep one ListenStream=")
        found[kind] = given
    return found
