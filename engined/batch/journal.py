"""What a batch has already answered: its output is its journal. A line counts once its result is in the file, so a
batch that is killed anywhere goes on where it was, and no line has two results. One process writes at a time."""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engined.batch.request_line import digest
from engined.batch.result_line import ID_PREFIX, ResultLine, encode_result
from engined.errors import BatchError

SYNC_SECONDS = 5.0
"""Most seconds of results that a power failure can take back; a killed process loses none."""
_LINE_BEGIN = b'{"id":"' + ID_PREFIX.encode()
_results = msgspec.json.Decoder(ResultLine)


class Journal:
    """The results so far. Failures go to a file of their own if there is one. Use it as a context manager."""

    def __init__(self, output_path: Path, error_path: Path | None = None) -> None:
        """Open the files, or make them; cut off what a kill left half written, and take in the rest.

        Raises BatchError if another run writes to a file, or if it holds something else. OSError as `open` does.
        """
        self.num_completed = 0
        self.num_failed = 0
        self._custom_ids: set[bytes] = set()
        self._numbers: set[int] = set()
        """Lines without a custom_id that can be read."""
        self._files: list[_ResultFile] = []
        self._last_sync = time.monotonic()
        try:
            for path in (output_path, *(() if error_path is None else (error_path,))):
                self._files.append(_ResultFile(path))
                for result in self._files[-1].recover():
                    self._note(result)
        except BaseException:
            self.close()
            raise

    @property
    def num_finished(self) -> int:
        """Lines that have a result."""
        return self.num_completed + self.num_failed

    @property
    def is_sync_due(self) -> bool:
        """Whether the last `sync` was long ago."""
        return time.monotonic() - self._last_sync > SYNC_SECONDS

    def has(self, number: int, custom_id: str | None) -> bool:
        """Whether this line has its result. The number counts only for a line without a custom_id."""
        return number in self._numbers if custom_id is None else digest(custom_id) in self._custom_ids

    def write(self, result: ResultLine) -> None:
        """Append a result; once this returns, it outlives the process. Raises OSError, for example on a full disk."""
        assert not self.has(result.number or 0, result.custom_id), f"{result.id} has its result already"
        self._files[-1 if result.is_failure else 0].append(encode_result(result))
        self._note(result)

    def sync(self) -> None:
        """Let the results outlive the machine too. Blocks for the disk; any thread may call it."""
        self._last_sync = time.monotonic()
        for file in self._files:
            file.sync()

    def close(self) -> None:
        """Close the files, and let another run have them."""
        for file in self._files:
            file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _note(self, result: ResultLine) -> None:
        if result.custom_id is not None:
            self._custom_ids.add(digest(result.custom_id))
        elif result.number is not None:
            self._numbers.add(result.number)
        if result.is_failure:
            self.num_failed += 1
        else:
            self.num_completed += 1


class _ResultFile:
    """One file of results, only ever appended to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise BatchError(f"{path} is not a regular file, so a batch could not be resumed: name a file")
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise BatchError(f"another batch is writing to {path}: wait for it, or choose another file") from None
        except BaseException:
            os.close(self._fd)
            raise

    def recover(self) -> Iterator[ResultLine]:
        """All results, in order. A last line that was not written to its end is cut off."""
        end = os.fstat(self._fd).st_size
        with open(os.dup(self._fd), "rb") as file:
            position = 0
            for number, data in enumerate(file, start=1):
                result = _parse(data)
                if result is not None:
                    yield result
                elif position + len(data) == end and _is_begin_of_line(data):
                    os.ftruncate(self._fd, position)
                else:
                    raise BatchError(f"line {number} of {self._path} is no result of a batch: choose another file")
                position += len(data)

    def append(self, data: bytes) -> None:
        """Write one line."""
        while data:
            data = data[os.write(self._fd, data) :]

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file, which unlocks it."""
        os.close(self._fd)


def _parse(data: bytes) -> ResultLine | None:
    if not data.endswith(b"\n"):
        return None
    try:
        return _results.decode(data)
    except msgspec.DecodeError:
        return None


def _is_begin_of_line(data: bytes) -> bool:
    """Whether `data` can be the beginning of a result; a power failure may leave zeros where it was."""
    begin = data.rstrip(b"\0\n")[: len(_LINE_BEGIN)]
    return _LINE_BEGIN.startswith(begin)
