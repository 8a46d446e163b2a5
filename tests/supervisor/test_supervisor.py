"""The supervisor with real child processes: readiness, deaths, signals, order and bounds of the end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SERVE = {"behaviour": "serve"}

Start = Callable[..., "Daemon"]


class Daemon:
    """A running tests/supervisor/daemon.py."""

    def __init__(self, log_path: Path, frontend: dict[str, Any], core: dict[str, Any], **settings: Any) -> None:
        settings["groups"] = [{"frontend 0": frontend}, {"EngineCore 0": core}]
        settings["crash_folder"] = str(log_path.with_name(f"crash-{log_path.name}"))
        self.crash_folder = Path(settings["crash_folder"])
        self.states: list[dict[str, Any]] = []
        self._log_path = log_path
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.supervisor.daemon", json.dumps(settings)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait_ready(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self._next_line("ready "))
        return facts

    def wait_phase(self, phase: str) -> dict[str, Any]:
        """The first state of that phase after those that were read."""
        while True:
            state: dict[str, Any] = json.loads(self._next_line("state "))
            if state["phase"] == phase:
                return state

    def _next_line(self, prefix: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(prefix):
                return line.removeprefix(prefix)
        raise AssertionError(self.log)

    def wait_log(self, text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in self.log:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    @property
    def last_line(self) -> str:
        return self.log.splitlines()[-1]

    def children(self) -> list[int]:
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in listed.stdout.split()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    daemons: list[Daemon] = []

    def start_one(frontend: dict[str, Any], core: dict[str, Any], **settings: Any) -> Daemon:
        daemons.append(Daemon(tmp_path / f"log-{len(daemons)}", frontend, core, **settings))
        return daemons[-1]

    yield start_one
    for daemon in daemons:
        daemon.process.kill()
        daemon.process.wait()
        if daemon.process.stdout is not None:
            daemon.process.stdout.close()


def _is_gone(pid: int, within: float = 5.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_is_ready_when_all_children_are_and_stops_on_sigterm(start: Start) -> None:
    daemon = start(SERVE, SERVE)
    assert daemon.wait_ready() == {"frontend 0": {"num_kv_blocks": 7}, "EngineCore 0": {"num_kv_blocks": 7}}
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0
    assert "EngineCore 0: loading weights" in daemon.log
    assert daemon.last_line.endswith("stopped")


def test_frontend_is_ended_before_the_core(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    daemon = start({"behaviour": "drain", "drain_seconds": 1.0, "mark": str(mark)}, {**SERVE, "mark": str(mark)})
    daemon.wait_ready()
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(10) == 0
    first, second = (line.split() for line in mark.read_text().splitlines())
    assert (first[0], second[0]) == ("frontend", "EngineCore")
    assert float(second[-1]) - float(first[-1]) >= 0.9


def test_second_signal_reaches_the_frontend_and_ends_within_two_seconds(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    daemon = start({"behaviour": "drain", "drain_seconds": 20, "mark": str(mark)}, SERVE)
    daemon.wait_ready()
    daemon.process.send_signal(signal.SIGTERM)
    daemon.wait_log("a second signal")
    while not mark.exists():  # two signals that wait together would be one
        assert daemon.process.poll() is None
        time.sleep(0.02)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(4) == 0
    assert [line.split()[3] for line in mark.read_text().splitlines()][:2] == ["1", "2"]


def test_third_signal_kills_at_once(start: Start) -> None:
    daemon = start({"behaviour": "deaf"}, SERVE)
    daemon.wait_ready()
    daemon.process.send_signal(signal.SIGTERM)
    daemon.wait_log("a second signal")
    daemon.process.send_signal(signal.SIGTERM)
    daemon.wait_log("second SIGTERM")
    begin = time.monotonic()
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(4) == 0
    assert time.monotonic() - begin < 1.5


def test_frontend_that_does_not_drain_in_time_is_killed(start: Start) -> None:
    daemon = start({"behaviour": "deaf"}, SERVE, drain_timeout=0)
    daemon.wait_ready()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0
    assert "did not end in time" in daemon.log


def test_failure_at_start_is_the_last_line_and_gives_the_exit_code(start: Start) -> None:
    daemon = start(SERVE, {"behaviour": "fail"})
    assert daemon.process.wait(20) == 65
    assert daemon.last_line.endswith(
        "EngineCore 0 exited with code 65: model.safetensors: missing parameter lm_head.weight"
    )


def test_unexpected_exception_names_type_and_process(start: Start) -> None:
    daemon = start(SERVE, {"behaviour": "crash"})
    assert daemon.process.wait(20) == 70
    assert daemon.last_line.endswith("EngineCore 0 exited with code 70: EngineCore 0: RuntimeError: boom")


def test_core_that_is_killed_ends_the_daemon_and_lets_the_frontend_say_so(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    daemon = start({"behaviour": "drain", "drain_seconds": 0.5, "mark": str(mark)}, {"behaviour": "kill_self"})
    daemon.wait_ready()
    assert daemon.process.wait(10) == 128 + signal.SIGKILL
    assert mark.read_text().startswith("frontend 0 SIGTERM 1")
    assert daemon.last_line.endswith("EngineCore 0 was killed by SIGKILL and said no cause")


def test_frontend_that_ends_by_itself_ends_the_daemon(start: Start) -> None:
    daemon = start({"behaviour": "quit", "code": 0}, SERVE)
    assert daemon.process.wait(20) == 70
    assert daemon.last_line.endswith("frontend 0 exited with code 0 and said no cause")


def test_the_core_is_the_cause_when_both_die(start: Start) -> None:
    daemon = start(SERVE, SERVE)
    daemon.wait_ready()
    # Stopped, the supervisor finds both deaths at once when it goes on.
    daemon.process.send_signal(signal.SIGSTOP)
    for pid in daemon.children():
        os.kill(pid, signal.SIGKILL)
    daemon.process.send_signal(signal.SIGCONT)
    assert daemon.process.wait(20) == 128 + signal.SIGKILL
    assert daemon.last_line.endswith("EngineCore 0 was killed by SIGKILL and said no cause")
    assert "frontend 0 was killed by SIGKILL" in daemon.log


def test_core_that_makes_no_progress_while_loading(start: Start) -> None:
    daemon = start(SERVE, {"behaviour": "never_ready"}, budget=2.0)
    assert daemon.process.wait(20) == 70
    silence = re.search(r"EngineCore 0 hung: no sign of life for (\d+\.\d) s", daemon.last_line)
    # The limit, and at most one interval between two looks at it.
    assert silence is not None and 2.0 <= float(silence[1]) <= 3.1, daemon.last_line
    assert "(LOADING, loading weights)" in daemon.last_line
    assert "time.sleep" in daemon.log or "in main" in daemon.log, "its stack is in the log"


def test_sigterm_while_loading(start: Start) -> None:
    daemon = start(SERVE, {"behaviour": "never_ready"})
    daemon.wait_log("EngineCore 0: loading weights")
    begin = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0
    assert time.monotonic() - begin < 5


def test_child_that_ends_badly_while_it_is_stopped_is_the_cause(start: Start) -> None:
    daemon = start(SERVE, {**SERVE, "code": 9})
    daemon.wait_ready()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 9
    assert daemon.last_line.endswith("EngineCore 0 exited with code 9 and said no cause")


def test_killed_supervisor_leaves_no_child(start: Start) -> None:
    daemon = start(SERVE, SERVE)
    daemon.wait_ready()
    children = daemon.children()
    assert len(children) == 2
    daemon.process.kill()
    assert all(_is_gone(pid) for pid in children)


def test_orphans_are_adopted_and_reaped(start: Start) -> None:
    daemon = start(SERVE, {"behaviour": "parent"})
    orphan = daemon.wait_ready()["EngineCore 0"]["orphan"]
    assert orphan in daemon.children()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{orphan}").exists():
        assert time.monotonic() < deadline, "a zombie stays behind"
        time.sleep(0.05)
    assert daemon.process.poll() is None
