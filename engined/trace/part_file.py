"""The spans of one process on their way to the disk: a line each, in a file of the process's own beside the trace.

A thread writes them, so that no loop waits for a disk. Whatever ends the process, the file is good up to its last whole
line; `engined.trace.collect` joins the files of all processes.
"""

import json
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger(__name__)

SpanRecord = tuple[int, str, int, int, Mapping[str, int]]
"""Track, name, start and end in nanoseconds of CLOCK_MONOTONIC, and arguments to show."""

_SECONDS_BETWEEN_WRITES = 0.1
_MAX_PENDING = 1 << 17
"""Spans that wait for the disk, some 30 MB; those that come then are lost."""


def part_paths(trace_path: str) -> list[Path]:
    """The files of all processes beside a trace, those of an earlier daemon included."""
    trace = Path(trace_path)
    is_part = re.compile(re.escape(trace.name) + r"\.\d+\.part").fullmatch
    return sorted(path for path in trace.parent.iterdir() if is_part(path.name))


class PartFile:
    """Owns the file and the thread. Any thread may record."""

    def __init__(self, file: BinaryIO, process: str) -> None:
        """`process` is the name to show."""
        self._file = file
        self._pid = os.getpid()
        self._pending: deque[SpanRecord] = deque()
        self._num_lost = 0
        self._metadata: deque[bytes] = deque([self._metadata_line(0, "process_name", process)])
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="trace", daemon=True)
        self._thread.start()

    @classmethod
    def create(cls, trace_path: str, process: str) -> "PartFile | None":
        """The file of this process; None, with a line in the log, if it cannot be created: tracing ends nobody."""
        path = f"{trace_path}.{os.getpid()}.part"
        try:
            return cls(open(path, "wb", buffering=0), process)
        except OSError as error:
            logger.error("this process will be missing in the trace: cannot create %s: %s", path, error.strerror)
            return None

    def name_track(self, track_id: int, name: str) -> None:
        """What a track is called."""
        self._metadata.append(self._metadata_line(track_id, "thread_name", name))

    def record(self, span: SpanRecord) -> None:
        """Take one span."""
        if len(self._pending) < _MAX_PENDING:
            self._pending.append(span)
        else:
            self._num_lost += 1

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self._is_closing.set()
        self._thread.join()
        self._file.close()
        if self._num_lost:
            logger.warning("the trace lacks %d spans of this process: the disk was too slow", self._num_lost)

    def _write_until_closed(self) -> None:
        while not self._is_closing.wait(_SECONDS_BETWEEN_WRITES):
            if not self._write():
                return
        self._write()

    def _write(self) -> bool:
        """Write what is pending. Whether the file takes more."""
        lines = [self._metadata.popleft() for _ in range(len(self._metadata))]
        lines += [self._line(self._pending.popleft()) for _ in range(len(self._pending))]
        data = memoryview(b"".join(lines))
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            logger.error("the trace of this process ends here: %s", error.strerror)
            return False
        return True

    def _line(self, span: SpanRecord) -> bytes:
        track_id, name, start, end, arguments = span
        shown = f',"args":{json.dumps(arguments)}' if arguments else ""
        return (
            f'{{"name":"{name}","ph":"X","pid":{self._pid},"tid":{track_id},'
            f'"ts":{_microseconds(start)},"dur":{_microseconds(end - start)}{shown}}}\n'
        ).encode()

    def _metadata_line(self, track_id: int, kind: str, name: str) -> bytes:
        event: dict[str, Any] = {"name": kind, "ph": "M", "pid": self._pid, "tid": track_id, "args": {"name": name}}
        return json.dumps(event).encode() + b"\n"


def _microseconds(nanoseconds: int) -> str:
    """Exactly: a float of an uptime of months would lose nanoseconds."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03}"
