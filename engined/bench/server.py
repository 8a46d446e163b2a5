"""A server under test: its name, where it listens, its model. Read from `--server NAME=URL[,MODEL]`."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from engined.errors import ConfigError
from engined.ipc.paths import default_uds_path

_UNIX_PREFIX = "unix:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server with an API like OpenAI's."""

    name: str
    """In tables and plots."""
    url: str
    model: str | None
    """What requests ask for; None: the first that the server lists."""
    uds: str | None = None
    host: str = "localhost"
    port: int = 80
    path: str = ""
    """Prefix of every route."""
    api_key: str | None = None


def parse_server(text: str, api_key: str | None) -> Server:
    """Read NAME=URL[,MODEL], with `unix:PATH` or `http://HOST:PORT`; `unix:` alone is this user's daemon.

    Raises ConfigError, which names the flag.
    """
    name, equals, rest = text.partition("=")
    url, _, model = rest.partition(",")
    if not name or not equals or not url:
        raise ConfigError(f"--server {text}: write NAME=URL or NAME=URL,MODEL")
    if url.startswith(_UNIX_PREFIX):
        uds = url.removeprefix(_UNIX_PREFIX) or str(default_uds_path())
        return Server(name=name, url=f"{_UNIX_PREFIX}{uds}", model=model or None, uds=uds, api_key=api_key)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme != "http":
        raise ConfigError(f"--server {text}: {url!r} is neither http://HOST:PORT nor unix:PATH")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Server(name=name, url=url, model=model or None, host=host, port=port or 80, path=path, api_key=api_key)
