"""Building blocks of an event stream: bytes that stay the same for all chunks are built once. Pure."""

from typing import Any

import orjson

from engined.errors import EnginedError
from engined.frontend.http_errors import error_object

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
TEXT = "<text>"
"""Stands for the text in the pattern of TextChunks."""


def event(data: dict[str, Any]) -> bytes:
    """One event with a JSON payload."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def error_event(error: EnginedError) -> bytes:
    """The event that ends a stream of chunks by an error, in the one error shape."""
    return event(error_object(error))


class ChunkWriter:
    """Chunks of one stream: the same id, time and model in all, one choice or none in each."""

    def __init__(self, response_id: str, object_name: str, created: int, model: str, *, null_usage: bool) -> None:
        """With `null_usage` chunks carry `"usage": null`, as streams that end in a usage chunk do."""
        head = {"id": response_id, "object": object_name, "created": created, "model": model}
        self._head = b"data: " + orjson.dumps(head)[:-1]
        self._tail = b',"usage":null}\n\n' if null_usage else b"}\n\n"

    def choice(self, choice: dict[str, Any], usage: dict[str, Any] | None, extra: bytes = b"") -> bytes:
        """A chunk with one choice. `extra` is JSON for the top level: a comma, then fields."""
        tail = self._tail if usage is None else b',"usage":' + orjson.dumps(usage) + b"}\n\n"
        return b"".join((self._head, b',"choices":[', orjson.dumps(choice), b"]", extra, tail))

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk without choices that ends a stream with include_usage."""
        return b"".join((self._head, b',"choices":[],"usage":', orjson.dumps(usage), b"}\n\n"))


class TextChunks:
    """Chunks of one stream that differ in their text only: everything around it is built once for each choice."""

    def __init__(self, writer: ChunkWriter, pattern: dict[str, Any]) -> None:
        """`pattern` is a choice without its index, with TEXT where the text belongs."""
        self._writer = writer
        self._pattern = pattern
        self._ends: dict[int, tuple[bytes, bytes]] = {}

    def chunk(self, index: int, text: str) -> bytes:
        """The next text of a choice; nothing if it is empty."""
        if not text:
            return b""
        ends = self._ends.get(index)
        if ends is None:
            whole = self._writer.choice({"index": index, **self._pattern}, None)
            before, _, after = whole.rpartition(orjson.dumps(TEXT))
            ends = self._ends[index] = before, after
        return ends[0] + orjson.dumps(text) + ends[1]
