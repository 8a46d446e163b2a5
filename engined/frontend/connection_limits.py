"""How many connections there may be, in all and from one address. Frontend process; asked by `acceptor`.

Loopback and the Unix socket count only towards the total: whoever comes that way is on this machine, and a proxy on it
comes from one address for everybody.
"""

import ipaddress
import logging
import resource
from collections import Counter

from engined.config.schema import ServerConfig

logger = logging.getLogger(__name__)

RESERVED_FILES = 128
"""Descriptors that are kept for anything but connections: links, files of batches, libraries."""


class ConnectionLimits:
    """The open connections of one frontend, counted."""

    def __init__(self, max_connections: int, max_per_network: int) -> None:
        self.num_open = 0
        self.num_refused = 0
        self._max_connections = max_connections
        self._max_per_network = max_per_network
        self._num_by_network: Counter[str] = Counter()

    def take(self, address: object) -> "ConnectionPlace | None":
        """Room for a connection from `address`, as `accept` returns it; None if there is none."""
        network = _network(address)
        is_full = self.num_open >= self._max_connections
        if is_full or (network is not None and self._num_by_network[network] >= self._max_per_network):
            self.num_refused += 1
            return None
        return ConnectionPlace(self, network)

    def note_opened(self, network: str | None) -> None:
        """Count one more."""
        self.num_open += 1
        if network is not None:
            self._num_by_network[network] += 1

    def note_closed(self, network: str | None) -> None:
        """Count one less; addresses without connections are forgotten."""
        self.num_open -= 1
        if network is not None:
            self._num_by_network[network] -= 1
            if not self._num_by_network[network]:
                del self._num_by_network[network]


class ConnectionPlace:
    """One connection's room, taken until `leave` is called, which may be more than once."""

    __slots__ = ("_limits", "_network", "_is_taken")

    def __init__(self, limits: ConnectionLimits, network: str | None) -> None:
        self._limits = limits
        self._network = network
        self._is_taken = True
        limits.note_opened(network)

    def leave(self) -> None:
        """The connection is closed."""
        if self._is_taken:
            self._is_taken = False
            self._limits.note_closed(self._network)


def connection_limits(server: ServerConfig) -> ConnectionLimits:
    """The limits that the options name, as far as the system lets this process open files."""
    most = _raise_file_limit(server.max_connections + RESERVED_FILES) - RESERVED_FILES
    if most < server.max_connections:
        logger.warning(
            "--max-connections %d: this process may open only %d files (RLIMIT_NOFILE): it takes %d connections",
            server.max_connections,
            most + RESERVED_FILES,
            most,
        )
    max_connections = max(1, min(most, server.max_connections))
    return ConnectionLimits(max_connections, server.max_connections_per_ip or max(1, max_connections // 2))


def _raise_file_limit(wanted: int) -> int:
    """Let this process open `wanted` files if it may raise its own limit so far; how many it may open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def _network(address: object) -> str | None:
    """What counts as one origin: an IPv4 address, or the /64 that one IPv6 host usually has to itself.

    None for those that have no limit of their own.
    """
    if not isinstance(address, tuple):
        return None
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_loopback:
        return None
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))
