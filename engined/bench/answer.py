"""What an exchange means: status, body, and the events of a stream with their times. No IO."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from engined.bench.exchange import Exchange

_TEXT_FIELDS = ("content", "reasoning_content", "tool_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A streamed completion. Times are seconds."""

    started: float
    ended: float
    token_times: list[float] = field(default_factory=list)
    """When each event came that had something of the answer."""
    num_tokens: int = 0
    """As the server counts them; else the number of events."""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    """Of the servers that tell them."""
    error: str | None = None

    @property
    def ttft(self) -> float:
        """To the first token."""
        return self.token_times[0] - self.started

    @property
    def gaps(self) -> list[float]:
        """Between each event and the next."""
        return [later - earlier for earlier, later in pairwise(self.token_times)]


def read_answer(result: Exchange) -> Answer:
    """The answer to a streamed request; one that is not whole has an error."""
    if result.error is not None:
        return _failed(result, result.error)
    try:
        status, pieces = _split(result)
        if status != 200:
            return _failed(result, f"status {status}: {_error_text(b''.join(data for _, data in pieces))}")
        return _read_events(result, pieces)
    except (ValueError, KeyError, TypeError) as error:
        return _failed(result, f"not an answer of an OpenAI server: {error!r}")


def read_dropped_answer(result: Exchange) -> Answer:
    """The same where the client hung up at the first event: that one is all that there is."""
    if result.error is None and result.reads and _split(result)[0] == 200:
        token_time = result.reads[-1][0]
        return Answer(started=result.started, ended=token_time, token_times=[token_time], num_tokens=1)
    return read_answer(result)


def read_json(result: Exchange) -> Any:
    """The body of a whole answer. Raises ValueError, with the cause, if there is none or its status is not 200."""
    if result.error is not None:
        raise ValueError(result.error)
    status, pieces = _split(result)
    body = b"".join(data for _, data in pieces)
    if status != 200:
        raise ValueError(f"status {status}: {_error_text(body)}")
    return orjson.loads(body)


def _failed(result: Exchange, error: str) -> Answer:
    return Answer(started=result.started, ended=result.ended, error=error)


def _read_events(result: Exchange, pieces: Iterable[tuple[float, bytes]]) -> Answer:
    times: list[float] = []
    texts: list[str] = []
    token_ids: list[int] = []
    num_tokens = 0
    for time, payload in _payloads(pieces):
        if payload == b"[DONE]":
            return Answer(
                started=result.started,
                ended=time,
                token_times=times,
                num_tokens=num_tokens or len(times),
                text="".join(texts),
                token_ids=token_ids,
                error=None if times else "the answer has no tokens",
            )
        event = orjson.loads(payload)
        if event.get("error"):
            return _failed(result, _error_text(payload))
        for choice in event.get("choices", ()):
            delta = choice.get("delta")
            # The first event of a chat brings the role and, from some servers, nothing else.
            if delta is None or any(delta.get(name) for name in _TEXT_FIELDS):
                times.append(time)
                texts.append(choice.get("text") or "")
                token_ids += choice.get("token_ids") or ()
        if event.get("usage"):
            num_tokens = event["usage"]["completion_tokens"]
    return _failed(result, "the stream ended without [DONE]")


def _payloads(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of each event, and when its line was whole."""
    rest = b""
    for time, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield time, line[5:].strip()


def _split(result: Exchange) -> tuple[int, list[tuple[float, bytes]]]:
    """Status and body, in pieces with their times. Raises ValueError if it is not HTTP."""
    head, end, num_reads = b"", b"", 0
    while not end:
        if num_reads == len(result.reads):
            raise ValueError("the server closed the connection without an answer")
        time, data = result.reads[num_reads]
        head, end, body = (head + data).partition(b"\r\n\r\n")
        num_reads += 1
    if not head.startswith(b"HTTP/1."):
        raise ValueError("that is not HTTP")
    rest = [(time, body), *result.reads[num_reads:]]
    if b"transfer-encoding: chunked" in head.lower():
        rest = list(_dechunk(rest))
    return int(head.split(maxsplit=2)[1]), rest


def _dechunk(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The content of the chunks, each at the time when it was whole."""
    rest = b""
    for time, data in pieces:
        rest += data
        begin = 0
        body: list[bytes] = []
        while (line_end := rest.find(b"\r\n", begin)) >= 0:
            size = int(rest[begin:line_end].split(b";")[0], 16)
            end = line_end + 2 + size
            if size == 0 or len(rest) < end + 2:
                break
            body.append(rest[line_end + 2 : end])
            begin = end + 2
        rest = rest[begin:]
        yield time, b"".join(body)


def _error_text(body: bytes) -> str:
    """What the body of an error says, in one short line."""
    try:
        error = orjson.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace")
    return " ".join(text.split())[:300]
