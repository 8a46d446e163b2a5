"""One start of a real daemon as its operator sees it: the probes, the log on a pipe, and the end of that pipe."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.server import Server, descendants, start, wait_until_gone

FLAGS = ("--kv-cache-memory", "64MiB", "--log-format", "json", "--num-threads", "1")
COMPLETIONS = "/v1/completions"


class PipedLog:
    """Reads a log through a pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.lines: list[dict[str, Any]] = []
        self._is_leaving = False
        self._thread = threading.Thread(target=self._read, args=(path,), daemon=True)
        self._thread.start()

    def messages(self) -> list[str]:
        return [line["message"] for line in self.lines]

    def leave(self) -> None:
        """Close the pipe after the next line."""
        self._is_leaving = True

    def wait_until_left(self) -> None:
        self._thread.join(5)
        assert not self._thread.is_alive()

    def _read(self, path: Path) -> None:
        with path.open() as pipe:
            for line in pipe:
                self.lines.append(json.loads(line))
                if self._is_leaving:
                    return


@pytest.fixture
def started(default_gguf: Path, tmp_path: Path) -> Iterator[tuple[Server, PipedLog]]:
    log = PipedLog(tmp_path / "server.log")
    server = start(default_gguf, tmp_path, *FLAGS)
    yield server, log
    pids = descendants(server.pid)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
    wait_until_gone(pids, 5.0)


def reasons_until_started(server: Server) -> list[str]:
    """What /startupz and /readyz say, each thing once, until the first one is content."""
    seen: dict[str, None] = {}
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.process.poll() is None:
        time.sleep(0.05)
        try:
            status, body = server.get("/startupz")
            if status == 200:
                return list(seen)
            seen[json.loads(body)["reason"]] = None
            seen[json.loads(server.get("/readyz")[1]).get("reason", "")] = None
        except OSError:
            continue  # the port is not bound yet
    raise AssertionError(f"it did not start; it said {list(seen)}")


def wait_until_dropped(server: Server, count: int) -> float:
    """Wait until so many lines of the log are lost, or more; their number."""
    deadline = time.monotonic() + 10
    while (seen := server.metric("engined:log_lines_dropped_total")) < count:
        assert time.monotonic() < deadline, f"{seen} lines are lost, not {count}"
        time.sleep(0.05)
    return seen


def test_a_start_says_how_far_it_is_and_outlives_its_log(started: tuple[Server, PipedLog]) -> None:
    server, log = started
    reasons = reasons_until_started(server)
    loading = [re.search(r"EngineCore 0: loading weights: (\d+) of (\d+) MB, \d+ of 272 tensors", r) for r in reasons]
    read = [int(match[1]) for match in loading if match is not None]
    assert read and read == sorted(read)
    assert any(reason.startswith("the engine is loading the model; EngineCore 0: ") for reason in reasons)

    messages = log.messages()
    assert len(messages) <= 15, messages
    for phase in ("preparing the CPU kernels", "loading weights", "packing weights", "warming up"):
        assert sum(f"EngineCore 0: {phase}" in message for message in messages) == 1, messages
    assert sum("the engine answered its first request in" in message for message in messages) == 1
    assert messages[-1].startswith("ready after ")
    assert all(list(line) == ["time", "level", "process", "pid", "module", "message"] for line in log.lines)

    server.complete(prompt="Once", max_tokens=2)
    log.leave()
    server.complete(prompt="Once", max_tokens=2)
    log.wait_until_left()
    assert log.lines[-1]["request"]["endpoint"] == COMPLETIONS and log.lines[-1]["request"]["generated_tokens"] == 2
    # The reader of the log is gone.
    pids = server.processes()
    for _ in range(3):
        server.complete(prompt="Once", max_tokens=2)
    num_dropped = wait_until_dropped(server, 3)
    server.process.send_signal(signal.SIGUSR1)  # the supervisor has something to write too, about both its children
    wait_until_dropped(server, num_dropped + 2)
    server.complete(prompt="Once", max_tokens=2)
    assert server.processes() == pids
