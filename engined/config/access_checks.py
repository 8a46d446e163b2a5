"""Who could reach the server, and whether that was meant. Used by `checks` for the options, and by the supervisor for
the sockets that it really holds, which a service manager may have opened.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable

from engined.config.api_keys import load_api_keys
from engined.config.schema import ServerConfig
from engined.config.tls import load_tls_context
from engined.errors import ConfigError

_HOST = re.compile(r"\*|[A-Za-z0-9_.-]+")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+")


def check_access(server: ServerConfig) -> None:
    """Check the options of access against each other, and that their files can be used. Raises ConfigError."""
    if (server.tls_certificate is None) != (server.tls_key is None):
        raise ConfigError("--tls-certificate and --tls-key belong together: give both, or neither")
    if server.tls_client_ca is not None and server.tls_certificate is None:
        raise ConfigError("--tls-client-ca needs --tls-certificate and --tls-key")
    if server.tls_certificate is not None and server.host == "none":
        raise ConfigError("--tls-certificate is for the TCP port, but --host none opens none: leave one of them out")
    _check_names(server)
    keys = load_api_keys(server)
    if keys is not None and server.insecure_no_auth:
        raise ConfigError("--insecure-no-auth means a server without keys, but there are some: leave one of them out")
    load_tls_context(server)
    if server.host != "none":
        check_exposure(server, _resolve(server.host))


def check_exposure(server: ServerConfig, addresses: Iterable[str]) -> None:
    """Refuse to serve on `addresses` (IP addresses) without a key if other machines can reach one of them.

    Raises ConfigError with the remedies.
    """
    if server.api_key or server.api_keys_file is not None or server.insecure_no_auth:
        return
    for address in addresses:
        if not is_loopback(address):
            raise ConfigError(
                f"other machines can reach {address}, and this server would ask for no key: make one with `engined "
                "keys new NAME` and give --api-keys-file FILE, or --api-key KEY; or listen on --host 127.0.0.1; or "
                "give --insecure-no-auth to let everybody in"
            )


def is_loopback(address: str) -> bool:
    """Whether an IP address, possibly with a scope, is this machine's own. IPv4 in IPv6 counts as what it is."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _check_names(server: ServerConfig) -> None:
    for name in server.allowed_host:
        if _HOST.fullmatch(name) is None:
            raise ConfigError(
                f"--allowed-host {name}: give a name alone, such as gpu.example.com, without scheme or port"
            )
    for origin in server.allowed_origin:
        if _ORIGIN.fullmatch(origin) is None:
            raise ConfigError(
                f"--allowed-origin {origin}: give scheme, host and port alone, such as https://example.com"
            )


def _resolve(host: str) -> list[str]:
    """Addresses of `host`; none if it cannot be resolved, which listening on it will tell."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
