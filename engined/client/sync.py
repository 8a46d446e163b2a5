"""The blocking client, on the standard library's HTTP alone. One connection a request."""

import contextlib
import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, overload

from engined.client.target import (
    Target,
    broken_answer,
    cancel_route,
    first_model,
    is_end_of_stream,
    make_target,
    parse_answer,
    parse_event,
    request_body,
    request_headers,
    unreachable,
)

Chunk = dict[str, Any]
Messages = list[dict[str, Any]]


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))


class Client:
    """Talks to one server. Answers are the server's JSON as dicts; every failure is a ClientError.

    Without `url` and `uds` it talks to the Unix socket of this user's daemon. `timeout` limits, in seconds, each wait
    for the server. Without `model` the first one that the server lists is used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        uds: str | Path | None = None,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.target = make_target(url, uds)
        self._headers = request_headers(api_key)
        self._model = model
        self._timeout = timeout

    @overload
    def chat(self, messages: Messages, *, stream: Literal[False] = False, **fields: Any) -> Chunk:
        """The whole answer."""

    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], **fields: Any) -> Iterator[Chunk]:
        """The answer as it comes."""

    def chat(self, messages: Messages, *, stream: bool = False, **fields: Any) -> Chunk | Iterator[Chunk]:
        """POST /v1/chat/completions; `fields` are further fields of the request (temperature, max_tokens, ...).

        With `stream` an iterator of chunks; closing it (or leaving its loop for good) ends the request in the server.
        """
        return self._generate("/v1/chat/completions", {"messages": messages}, stream, fields)

    @overload
    def complete(self, prompt: str, *, stream: Literal[False] = False, **fields: Any) -> Chunk:
        """The whole answer."""

    @overload
    def complete(self, prompt: str, *, stream: Literal[True], **fields: Any) -> Iterator[Chunk]:
        """The answer as it comes."""

    def complete(self, prompt: str, *, stream: bool = False, **fields: Any) -> Chunk | Iterator[Chunk]:
        """POST /v1/completions; see `chat`."""
        return self._generate("/v1/completions", {"prompt": prompt}, stream, fields)

    def models(self) -> list[dict[str, Any]]:
        """What GET /v1/models lists."""
        models: list[dict[str, Any]] = self._request("GET", "/v1/models")["data"]
        return models

    def requests(self) -> list[dict[str, Any]]:
        """What GET /admin/requests lists: the requests that are under way."""
        requests: list[dict[str, Any]] = self._request("GET", "/admin/requests")["data"]
        return requests

    def cancel_request(self, request_id: str) -> None:
        """End a request that is under way. Raises ClientError 404 if none has exactly this id."""
        self._request("DELETE", cancel_route(request_id))

    def status(self) -> dict[str, Any]:
        """What GET /admin/status tells: health, model, load."""
        status: dict[str, Any] = self._request("GET", "/admin/status")
        return status

    def health(self) -> bool:
        """Whether the server is ready. Raises ClientError, with the reason, if it is not."""
        self._request("GET", "/health")
        return True

    def _generate(
        self, route: str, prompt: dict[str, Any], stream: bool, fields: dict[str, Any]
    ) -> Chunk | Iterator[Chunk]:
        if self._model is None and "model" not in fields:
            self._model = first_model(self.models())
        body = request_body(prompt, self._model or "", stream, fields)
        if stream:
            return self._stream(route, body)
        answer: Chunk = self._request("POST", route, body)
        return answer

    def _request(self, method: str, route: str, body: bytes | None = None) -> Any:
        with contextlib.closing(self._connect()) as connection:
            response = self._send(connection, method, route, body)
            try:
                return parse_answer(response.status, response.read())
            except (OSError, http.client.HTTPException) as error:
                raise broken_answer(self.target) from error

    def _stream(self, route: str, body: bytes) -> Iterator[Chunk]:
        with contextlib.closing(self._connect()) as connection:
            response = self._send(connection, "POST", route, body)
            try:
                if response.status >= 400:
                    parse_answer(response.status, response.read())
                while line := response.readline():
                    if is_end_of_stream(line):
                        return
                    if (chunk := parse_event(line, response.status)) is not None:
                        yield chunk
            except (OSError, http.client.HTTPException) as error:
                raise broken_answer(self.target) from error
            raise broken_answer(self.target)

    def _connect(self) -> http.client.HTTPConnection:
        target: Target = self.target
        if target.uds is not None:
            return _UnixConnection(target.uds, self._timeout)
        kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
        return kind(target.host, target.port, timeout=self._timeout)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, route: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, self.target.path + route, body=body, headers=self._headers)
            return connection.getresponse()
        except OSError as error:
            raise unreachable(self.target, error) from error
        except http.client.HTTPException as error:
            raise broken_answer(self.target) from error
