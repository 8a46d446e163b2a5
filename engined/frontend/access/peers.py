"""Where a request comes from, by its connection and never by what it says. Frontend process."""

import socket

from aiohttp import web

from engined.config.access_checks import is_loopback


def is_unix(request: web.BaseRequest) -> bool:
    """Whether it came over the Unix socket."""
    return _family(request) == socket.AF_UNIX


def is_local(request: web.BaseRequest) -> bool:
    """Whether it came from this machine: over the Unix socket or the loopback interface."""
    if request.transport is None:
        return False  # it has gone
    if is_unix(request):
        return True
    peer = request.transport.get_extra_info("peername")
    return peer is not None and is_loopback(peer[0])


def _family(request: web.BaseRequest) -> int | None:
    connection = None if request.transport is None else request.transport.get_extra_info("socket")
    return None if connection is None else connection.family
