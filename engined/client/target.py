"""Where a client connects to, what a request looks like, and how a stream is read. Shared by both clients; no IO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from engined.client.errors import ClientError, ServerUnreachableError, error_from_body
from engined.ipc.paths import default_uds_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server: a Unix socket, or scheme, host and port."""

    uds: Path | None
    scheme: str = "http"
    host: str = "localhost"
    port: int = 80
    path: str = ""
    """Prefix of every route, for a server behind a proxy."""

    def __str__(self) -> str:
        return f"unix:{self.uds}" if self.uds is not None else f"{self.scheme}://{self.host}:{self.port}{self.path}"


def make_target(url: str | None, uds: str | Path | None) -> Target:
    """The server that `url` or `uds` names; without both, the Unix socket of this user's daemon.

    `url` may end in /v1, as base URLs of OpenAI clients do. Raises ClientError if it is no HTTP URL.
    """
    if url is None:
        return Target(uds=Path(uds) if uds is not None else default_uds_path())
    if uds is not None:
        raise ClientError("give either a URL or a Unix socket, not both")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ClientError(f"{url!r} is not a URL like http://127.0.0.1:8000")
    return Target(
        uds=None,
        scheme=parts.scheme,
        host=parts.hostname,
        port=parts.port or (443 if parts.scheme == "https" else 80),
        path=parts.path.rstrip("/").removesuffix("/v1"),
    )


def request_headers(api_key: str | None) -> dict[str, str]:
    """Headers of every request."""
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def request_body(prompt: Mapping[str, Any], model: str, stream: bool, fields: Mapping[str, Any]) -> bytes:
    """A generation request; `fields` wins over the rest."""
    return orjson.dumps({"model": model, "stream": stream, **prompt, **fields})


def cancel_route(request_id: str) -> str:
    """Path of one request that is under way; its id is taken as it is."""
    return f"/admin/requests/{quote(request_id, safe='')}"


def is_end_of_stream(line: bytes) -> bool:
    """Whether this line of a stream is its terminator."""
    return line.startswith(b"data:") and line.removeprefix(b"data:").strip() == b"[DONE]"


def parse_event(line: bytes, status: int) -> dict[str, Any] | None:
    """The chunk in one line of a stream; None for anything that is not data. Raises ClientError for an error event."""
    if not line.startswith(b"data:") or is_end_of_stream(line):
        return None
    chunk: dict[str, Any] = orjson.loads(line.removeprefix(b"data:"))
    if chunk.get("error"):
        raise error_from_body(status, chunk)
    return chunk


def parse_answer(status: int, body: bytes) -> Any:
    """The JSON of a whole answer. Raises ClientError for an error status."""
    try:
        answer = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        answer = body.decode(errors="replace")
    if status >= 400:
        raise error_from_body(status, answer)
    return answer


def unreachable(target: Target, error: OSError) -> ClientError:
    """What to say when there is no connection."""
    reason = error.strerror or str(error) or type(error).__name__
    return ServerUnreachableError(f"no engined server answers at {target}: {reason}; start one with `engined serve`")


def broken_answer(target: Target) -> ClientError:
    """What to say when an answer, or a stream, is cut off or makes no sense."""
    return ClientError(f"{target} closed the connection in the middle of an answer")


def first_model(models: Sequence[Mapping[str, Any]]) -> str:
    """Id of the first model that a server lists. Raises ClientError if it lists none."""
    if not models:
        raise ClientError("the server lists no model")
    return str(models[0]["id"])
