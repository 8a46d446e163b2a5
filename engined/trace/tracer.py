"""Where a process says what it does: spans on tracks. Without `--trace` they are nothing, and cost next to nothing.

A process has one `Tracer`, made in its `main`, and hands tracks of it to its parts. Time is CLOCK_MONOTONIC, which is
the same for all processes of a machine.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from engined.trace.part_file import PartFile, SpanRecord

Record = Callable[[SpanRecord], None]


class Span:
    """The block of a `with` statement, as the trace sees it. This one is not recorded."""

    __slots__ = ()

    def __enter__(self) -> None:
        """The span begins."""

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """The span ends."""


class _RecordedSpan(Span):
    __slots__ = ("_arguments", "_name", "_record", "_start", "_track_id")

    def __init__(self, record: Record, track_id: int, name: str, arguments: Mapping[str, int]) -> None:
        self._record = record
        self._track_id = track_id
        self._name = name
        self._arguments = arguments

    def __enter__(self) -> None:
        self._start = time.monotonic_ns()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._record((self._track_id, self._name, self._start, time.monotonic_ns(), self._arguments))


_UNRECORDED = Span()
_NO_ARGUMENTS: Mapping[str, int] = {}


class Track:
    """One row of the trace: what a thread or a task does. Its spans nest, so nobody else may use it meanwhile."""

    __slots__ = ("_id", "_record")

    def __init__(self, record: Record | None, id: int) -> None:
        self._record = record
        self._id = id

    def span(self, name: str, arguments: Mapping[str, int] = _NO_ARGUMENTS) -> Span:
        """For a `with` statement: its block is one span, shown with `arguments`."""
        if self._record is None:
            return _UNRECORDED
        return _RecordedSpan(self._record, self._id, name, arguments)


NO_TRACK = Track(None, 0)
"""Records nothing."""


class Tracer:
    """The tracks of one process, and the file that takes them. `close` it at the end of the process."""

    def __init__(self, trace_path: str | None, process: str) -> None:
        """`trace_path` is the option `--trace`; None records nothing. `process` is the name to show."""
        self._part = None if trace_path is None else PartFile.create(trace_path, process)
        self._lock = threading.Lock()
        self._num_tracks = 0
        self._free: dict[str, list[Track]] = {}
        self._num_lanes: dict[str, int] = {}

    def track(self, name: str) -> Track:
        """A new row under this name."""
        if self._part is None:
            return NO_TRACK
        with self._lock:
            return self._add(self._part, name)

    @contextlib.contextmanager
    def lane(self, name: str) -> Iterator[Track]:
        """A span in one of several rows of this name, for what goes on many times at once. It has the row to itself,
        and the block may put spans of its own there."""
        if self._part is None:
            yield NO_TRACK
            return
        with self._lock:
            free = self._free.setdefault(name, [])
            if not free:
                self._num_lanes[name] = self._num_lanes.get(name, 0) + 1
                free.append(self._add(self._part, f"{name} {self._num_lanes[name]}"))
            track = free.pop()
        try:
            with track.span(name):
                yield track
        finally:
            with self._lock:
                free.append(track)

    def close(self) -> None:
        """Write what is left."""
        if self._part is not None:
            self._part.close()

    def _add(self, part: PartFile, name: str) -> Track:
        self._num_tracks += 1
        part.name_track(self._num_tracks, name)
        return Track(part.record, self._num_tracks)


NO_TRACER = Tracer(None, "")
"""Its tracks record nothing."""
