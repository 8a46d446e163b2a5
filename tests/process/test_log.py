"""The log: what its lines look like, and that nothing on its other end can stop or end the process."""

import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from engined.config.journal import writes_to_journal
from engined.log import LogHandler
from engined.log.formats import JsonFormatter, TextFormatter, printable
from engined.log.losses import LossCounter
from engined.log.output import LogOutput

HOSTILE = "a\r\nb\x1b[31mc\x9bd\u202ee\ttext"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    yield read_end, write_end
    os.close(read_end)
    os.close(write_end)


def record(message: str, *args: object, level: int = logging.INFO, **attributes: object) -> logging.LogRecord:
    made = logging.LogRecord("engined.test", level, __file__, 1, message, args, None)
    made.__dict__.update(attributes)
    return made


@contextmanager
def handler_of(fd: int) -> Iterator[LogHandler]:
    with closing(LogHandler(LogOutput(fd), LossCounter())) as handler:
        handler.setFormatter(logging.Formatter("%(message)s"))
        yield handler


def test_text_lets_no_control_character_through_and_nobody_forge_a_line() -> None:
    line = TextFormatter("frontend 0", is_journal=False).format(record("label %s", HOSTILE))
    first, second = line.split("\n")
    assert first.endswith(f"INFO    frontend 0[{os.getpid()}] engined.test: label a\\x0d")
    assert second == "    b\\x1b[31mc\\x9bd\\u202ee\\x09text"
    assert printable(HOSTILE) == "a\\x0d\\x0ab\\x1b[31mc\\x9bd\\u202ee\\x09text"


def test_json_is_one_object_a_line_with_fixed_keys() -> None:
    formatter = JsonFormatter("frontend 0", is_journal=False)
    line = formatter.format(record("label %s", HOSTILE + "\ud800", request={"id": "x"}))
    assert line.isascii() and line.isprintable()
    parsed = json.loads(line)
    assert list(parsed) == ["time", "level", "process", "pid", "module", "message", "request"]
    assert parsed["message"] == f"label {HOSTILE}\ud800"
    assert parsed["level"] == "info" and parsed["time"].endswith("Z") and parsed["request"] == {"id": "x"}
    assert list(json.loads(formatter.format(record("plain")))) == [*parsed][:-1]
    try:
        raise ValueError("bad\nline")
    except ValueError:
        failed = record("failed", exc_info=sys.exc_info())
    assert "bad\nline" in json.loads(formatter.format(failed))["exception"]


@pytest.mark.parametrize(
    ("level", "prefix"),
    [(logging.DEBUG, "<7>"), (logging.INFO, "<6>"), (logging.WARNING, "<4>"), (logging.ERROR, "<3>"), (50, "<2>")],
)
def test_the_journal_gets_the_level_and_no_time(level: int, prefix: str) -> None:
    text = TextFormatter("frontend 0", is_journal=True).format(record("two\nlines", level=level))
    name = logging.getLevelName(level)
    assert text == f"{prefix}{name:7} frontend 0[{os.getpid()}] engined.test: two\n{prefix}    lines"
    line = JsonFormatter("frontend 0", is_journal=True).format(record("x", level=level))
    assert line.startswith(prefix + "{") and json.loads(line[3:])["message"] == "x"


def test_the_journal_is_known_by_its_stream(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        status = os.fstat(file.fileno())
        stream = f"{status.st_dev}:{status.st_ino}"
        assert writes_to_journal({"JOURNAL_STREAM": stream}, file.fileno())
        assert not writes_to_journal({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}, file.fileno())
        assert not writes_to_journal({}, file.fileno())
    assert not writes_to_journal({"JOURNAL_STREAM": stream}, 999)


def test_a_pipe_that_nobody_reads_costs_one_moment(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    with handler_of(write_end) as handler:
        started = time.monotonic()
        for number in range(5000):
            handler.handle(record("line %04d %s", number, "x" * 90))
        assert time.monotonic() - started < 20.0, "each line waited, for 50 ms"
        num_dropped = handler.num_dropped
        assert num_dropped > 4000
        # The reader comes back: what follows is whole lines again, and the first says what is missing.
        got = os.read(read_end, 1 << 20)
        handler.handle(record("after"))
        lines = (got + os.read(read_end, 1 << 20)).decode().splitlines()
        assert lines[-2:] == [f"{num_dropped} lines of this log were lost: they could not be written", "after"]
        assert {len(line) for line in lines[:-2]} == {100}
        assert handler.num_dropped == num_dropped
        assert os.get_blocking(write_end)  # its flags belong to other processes too


def test_a_long_record_waits_for_a_slow_reader(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    text, got = "x" * 300_000 + "\n", bytearray()

    def read_slowly() -> None:
        while len(got) < len(text):
            select.select([read_end], [], [], 5.0)
            got.extend(os.read(read_end, 20_000))
            time.sleep(0.002)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    with closing(LogOutput(write_end)) as output:
        assert output.write(text)
    reader.join()
    assert got.decode() == text


def test_a_pipe_whose_reader_is_gone() -> None:
    read_end, write_end = os.pipe()
    with handler_of(write_end) as handler:
        os.close(read_end)
        for _ in range(3):
            handler.handle(record("line"))
        assert handler.num_dropped == 3
        os.close(write_end)


def test_a_full_disk() -> None:
    with open("/dev/full", "wb", buffering=0) as full, handler_of(full.fileno()) as handler:
        handler.handle(record("line"))
        assert handler.num_dropped == 1


def test_a_disk_that_fills_within_a_line(tmp_path: Path) -> None:
    """RLIMIT_FSIZE cuts a write as a full disk does, and there is room again when the file is emptied."""
    script = """if True:
        import logging, resource, signal, sys
        from engined import log
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
        log.setup("test")
        logger = logging.getLogger("engined.test")
        for _ in range(8):
            logger.info("y" * 40)
        print(log.num_dropped())
        open(sys.argv[1], "r+").truncate(0)
        logger.info("again")
    """
    path = tmp_path / "log"
    with path.open("ab") as file:
        arguments = [sys.executable, "-c", script, str(path)]
        num_dropped = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=file, check=True).stdout.decode()
    *_, loss, last = path.read_text().splitlines()
    assert int(num_dropped) in (5, 6) and f"{num_dropped.strip()} lines of this log were lost" in loss
    assert last.endswith("again")


def test_a_socket_as_the_journal_has_it() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with handler_of(theirs.fileno()) as handler:
        handler.handle(record("line"))
        assert ours.recv(100) == b"line\n"
        started = time.monotonic()
        while not handler.num_dropped:
            handler.handle(record("%s", "x" * 1000))
        handler.handle(record("more"))
        assert time.monotonic() - started < 20.0, "each line waited, for 50 ms"
        assert theirs.getblocking()
        ours.close()
        handler.handle(record("line"))
        assert handler.num_dropped == 3
        theirs.close()


def test_a_stderr_that_is_closed() -> None:
    """The next file that is opened gets its number; the log must not go there."""
    script = """if True:
        import logging, os, sys, tempfile
        from engined import log
        log.setup("test")
        with tempfile.TemporaryFile() as file:
            logging.getLogger("engined.test").info("line")
            sys.exit(os.fstat(file.fileno()).st_size)
    """
    process = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, script])
    assert process.returncode == 0


def test_a_record_that_cannot_be_formatted_is_a_lost_line(pipe: tuple[int, int]) -> None:
    with handler_of(pipe[1]) as handler:
        handler.handle(record("%d", "no number"))
        assert handler.num_dropped == 1
