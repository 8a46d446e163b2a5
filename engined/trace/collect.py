"""The trace of a whole daemon, joined from the files of its processes once they have ended. Main process."""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from engined.errors import ConfigError
from engined.trace.part_file import part_paths

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def collected_trace(trace_path: str | None) -> Iterator[None]:
    """Processes that end inside leave their spans in `trace_path`. Raises ConfigError if it cannot be created."""
    if trace_path is None:
        yield
        return
    _create(trace_path)
    try:
        yield
    finally:
        _join(trace_path)


def _create(trace_path: str) -> None:
    """An empty trace, so that a path which cannot be written is known at once. Forgets an earlier one."""
    try:
        with open(trace_path, "w") as trace:
            trace.write("[]\n")
        for path in part_paths(trace_path):
            path.unlink()
    except OSError as error:
        raise ConfigError(f"--trace: cannot create {trace_path}: {error.strerror}") from None


def _join(trace_path: str) -> None:
    try:
        paths = part_paths(trace_path)
        with open(trace_path, "wb") as trace:
            trace.write(b"[")
            separator = b"\n"
            for line in _whole_lines(paths):
                trace.write(separator + line)
                separator = b",\n"
            trace.write(b"\n]\n")
        for path in paths:
            path.unlink()
    except OSError as error:
        logger.error("the trace stays in its parts, %s.*.part: %s", trace_path, error.strerror)


def _whole_lines(paths: Iterable[Path]) -> Iterator[bytes]:
    """Without their ends. A process that was killed may have left half a line."""
    for path in paths:
        with path.open("rb") as part:
            yield from (line.rstrip() for line in part if line.endswith(b"\n"))
