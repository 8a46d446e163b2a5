"""The client for asyncio, on aiohttp. Same methods and answers as the blocking one."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import aiohttp

from engined.client.target import (
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

# A chunk with log-probabilities of a long prompt is one line.
_LONGEST_LINE = 16 << 20

Chunk = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    """An answer of any status, as it came."""

    status: int
    request_id: str
    """Empty if the server named none."""
    body: bytes


Messages = list[dict[str, Any]]


class AsyncClient:
    """Talks to one server; see `Client`. Use it with `async with`: it keeps a pool of connections."""

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
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "AsyncClient":
        target = self.target
        connector = (
            aiohttp.TCPConnector(limit=0) if target.uds is None else aiohttp.UnixConnector(str(target.uds), limit=0)
        )
        base = f"{target.scheme}://{target.host}:{target.port}" if target.uds is None else "http://localhost"
        self._session = aiohttp.ClientSession(
            base,
            connector=connector,
            headers=self._headers,
            timeout=self._timeout,
            read_bufsize=_LONGEST_LINE,
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._session is not None:
            await self._session.close()

    @overload
    async def chat(self, messages: Messages, *, stream: Literal[False] = False, **fields: Any) -> Chunk:
        """The whole answer."""

    @overload
    async def chat(self, messages: Messages, *, stream: Literal[True], **fields: Any) -> AsyncIterator[Chunk]:
        """The answer as it comes."""

    async def chat(self, messages: Messages, *, stream: bool = False, **fields: Any) -> Chunk | AsyncIterator[Chunk]:
        """POST /v1/chat/completions; with `stream`: `async for chunk in await client.chat(..., stream=True)`.

        Closing the iterator, or cancelling the task, ends the request in the server.
        """
        return await self._generate("/v1/chat/completions", {"messages": messages}, stream, fields)

    @overload
    async def complete(self, prompt: str, *, stream: Literal[False] = False, **fields: Any) -> Chunk:
        """The whole answer."""

    @overload
    async def complete(self, prompt: str, *, stream: Literal[True], **fields: Any) -> AsyncIterator[Chunk]:
        """The answer as it comes."""

    async def complete(self, prompt: str, *, stream: bool = False, **fields: Any) -> Chunk | AsyncIterator[Chunk]:
        """POST /v1/completions; see `chat`."""
        return await self._generate("/v1/completions", {"prompt": prompt}, stream, fields)

    async def models(self) -> list[dict[str, Any]]:
        """What GET /v1/models lists."""
        models: list[dict[str, Any]] = (await self._request("GET", "/v1/models"))["data"]
        return models

    async def requests(self) -> list[dict[str, Any]]:
        """What GET /admin/requests lists: the requests that are under way."""
        requests: list[dict[str, Any]] = (await self._request("GET", "/admin/requests"))["data"]
        return requests

    async def cancel_request(self, request_id: str) -> None:
        """End a request that is under way. Raises ClientError 404 if none has exactly this id."""
        await self._request("DELETE", cancel_route(request_id))

    async def status(self) -> dict[str, Any]:
        """What GET /admin/status tells: health, model, load."""
        status: dict[str, Any] = await self._request("GET", "/admin/status")
        return status

    async def health(self) -> bool:
        """Whether the server is ready. Raises ClientError, with the reason, if it is not."""
        await self._request("GET", "/health")
        return True

    async def post(self, route: str, body: bytes) -> RawAnswer:
        """POST a JSON body as it is. Raises ClientError only if there was no answer."""
        try:
            async with self._open_session().post(self.target.path + route, data=body) as response:
                request_id = response.headers.get("x-request-id", "")
                return RawAnswer(status=response.status, request_id=request_id, body=await response.read())
        except aiohttp.ClientConnectorError as error:
            raise unreachable(self.target, error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise broken_answer(self.target) from error

    async def _generate(
        self, route: str, prompt: dict[str, Any], stream: bool, fields: dict[str, Any]
    ) -> Chunk | AsyncIterator[Chunk]:
        if self._model is None and "model" not in fields:
            self._model = first_model(await self.models())
        body = request_body(prompt, self._model or "", stream, fields)
        if stream:
            return self._stream(route, body)
        answer: Chunk = await self._request("POST", route, body)
        return answer

    async def _request(self, method: str, route: str, body: bytes | None = None) -> Any:
        try:
            async with self._open_session().request(method, self.target.path + route, data=body) as response:
                return parse_answer(response.status, await response.read())
        except aiohttp.ClientConnectorError as error:
            raise unreachable(self.target, error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise broken_answer(self.target) from error

    async def _stream(self, route: str, body: bytes) -> AsyncIterator[Chunk]:
        try:
            async with self._open_session().post(self.target.path + route, data=body) as response:
                if response.status >= 400:
                    parse_answer(response.status, await response.read())
                async for line in response.content:
                    if is_end_of_stream(line):
                        return
                    if (chunk := parse_event(line, response.status)) is not None:
                        yield chunk
                raise broken_answer(self.target)
        except aiohttp.ClientConnectorError as error:
            raise unreachable(self.target, error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise broken_answer(self.target) from error

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use AsyncClient with `async with`"
        return self._session
