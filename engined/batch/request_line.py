"""The input of a batch: one request a line. Pure, apart from reading the file."""

import hashlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from engined.errors import EnginedError

BATCH_URLS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/responses",
    "/v1/messages",
)
"""What a line may ask for."""
MAX_LINE_BYTES = 16 << 20
MAX_ECHOED = 128
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RequestLine(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: Raw
    """The JSON object that would be the body of the HTTP request."""


class LineFault(EnginedError):
    """A line that is no request. `code` is machine-readable, `custom_id` is the line's, if it can be read at all."""

    def __init__(self, message: str, *, code: str, param: str | None = None, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.custom_id = custom_id


class _Identity(Struct):
    """What can be known of a line that is otherwise faulty."""

    custom_id: str | None = None


class _Streaming(Struct):
    """The one field of a body that a batch must look at."""

    stream: Any = None


_lines = msgspec.json.Decoder(RequestLine)
_identities = msgspec.json.Decoder(_Identity)
_streaming = msgspec.json.Decoder(_Streaming)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers, from 1. One line at a time is in memory.

    A line that is too long is cut to one byte more than MAX_LINE_BYTES, which `parse_line` refuses.
    """
    with path.open("rb") as file:
        number = 0
        while data := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(data) > MAX_LINE_BYTES:
                _skip_rest(file.readline)
            elif number == 1:
                data = data.removeprefix(_BYTE_ORDER_MARK)
            if data := data.strip():
                yield number, data


def parse_line(data: bytes, urls: Collection[str]) -> RequestLine:
    """One line as a request for one of `urls`. Raises LineFault."""
    if len(data) >= MAX_LINE_BYTES:
        raise LineFault(f"the line is longer than {MAX_LINE_BYTES} bytes", code="line_too_long")
    try:
        line = _lines.decode(data)
    except msgspec.ValidationError as error:
        raise LineFault(f"the line is no request: {error}", code="invalid_line", custom_id=_custom_id(data)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineFault(f"the line is not JSON: {error}", code="invalid_json_line") from None
    fault = _find_fault(line, urls)
    if fault is not None:
        raise fault
    return line


def asks_for_stream(line: RequestLine) -> bool:
    """Whether the body wants its answer as a stream, which a file cannot hold."""
    return bool(_streaming.decode(line.body).stream)


def digest(custom_id: str) -> bytes:
    """16 bytes that stand for a custom_id, so that the memory for a line does not depend on its length."""
    return hashlib.blake2b(custom_id.encode(), digest_size=16).digest()


def _find_fault(line: RequestLine, urls: Collection[str]) -> LineFault | None:
    if not line.custom_id:
        return LineFault("custom_id is empty: give each line its own", code="invalid_custom_id", param="custom_id")
    if line.method != "POST":
        return LineFault(
            f"method must be POST, not {line.method[:MAX_ECHOED]!r}",
            code="invalid_method",
            param="method",
            custom_id=line.custom_id,
        )
    if line.url not in urls:
        return LineFault(
            f"url must be {' or '.join(urls)}, not {line.url[:MAX_ECHOED]!r}",
            code="invalid_url",
            param="url",
            custom_id=line.custom_id,
        )
    if not bytes(line.body).startswith(b"{"):
        return LineFault("body must be a JSON object", code="invalid_body", param="body", custom_id=line.custom_id)
    return None


def _custom_id(data: bytes) -> str | None:
    try:
        return _identities.decode(data).custom_id
    except (msgspec.DecodeError, RecursionError):
        return None


def _skip_rest(readline: Callable[[int], bytes]) -> None:
    while (data := readline(MAX_LINE_BYTES)) and not data.endswith(b"\n"):
        pass
