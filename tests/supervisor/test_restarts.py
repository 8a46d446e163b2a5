"""Children that die or hang while the daemon serves: they come back, the others stay, and a loop ends it all."""

import os
import signal
import time
from pathlib import Path

from tests.supervisor.test_supervisor import SERVE, Daemon, Start, start

__all__ = ["start"]  # the fixture


def pid_named(daemon: Daemon, name: str) -> int:
    for pid in daemon.children():
        if name in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    raise AssertionError(f"no {name} among {daemon.children()}")


def test_a_killed_frontend_comes_back_and_the_core_stays(start: Start) -> None:
    daemon = start(SERVE, SERVE, restart_delays=[0.0])
    daemon.wait_ready()
    core, frontend = pid_named(daemon, "EngineCore"), pid_named(daemon, "frontend")
    started = time.monotonic()
    os.kill(frontend, signal.SIGKILL)
    assert (
        "frontend 0: starting (after this: frontend 0 was killed by SIGKILL" in daemon.wait_phase("recovering")["text"]
    )
    daemon.wait_phase("serving")
    assert time.monotonic() - started < 3
    assert pid_named(daemon, "EngineCore") == core and pid_named(daemon, "frontend") != frontend
    daemon.process.terminate()
    assert daemon.process.wait(10) == 0


def test_a_killed_core_comes_back_after_a_delay_and_the_frontend_must_say_so(start: Start, tmp_path: Path) -> None:
    daemon = start(SERVE, SERVE, restart_delays=[0.5, 1.0])
    daemon.wait_ready()
    frontend = pid_named(daemon, "frontend")
    os.kill(pid_named(daemon, "EngineCore"), signal.SIGKILL)
    state = daemon.wait_phase("recovering")
    assert state["retry_after"] > 5 and "EngineCore 0 was killed by SIGKILL" in state["text"]
    daemon.wait_log("EngineCore 0 is started again in 0.5 s")
    # The frontend of this test never reports again: the daemon waits for it.
    assert daemon.wait_phase("recovering")["text"].startswith(("EngineCore 0: starting", "EngineCore 0: loading"))
    time.sleep(1)
    assert pid_named(daemon, "frontend") == frontend
    daemon.process.terminate()
    assert daemon.process.wait(10) == 0


def test_a_core_that_hangs_leaves_its_stack_and_is_started_again(start: Start, tmp_path: Path) -> None:
    daemon = start(SERVE, {"behaviour": "hang", "once": str(tmp_path / "once")}, restart_delays=[0.1], budget=2.0)
    daemon.wait_ready()
    core = pid_named(daemon, "EngineCore")
    daemon.wait_log("EngineCore 0 gave no sign of life")
    daemon.wait_log("EngineCore 0 is started again in 0.1 s")
    deadline = time.monotonic() + 10
    while core in daemon.children() or len(daemon.children()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [kept] = daemon.crash_folder.glob("*.txt")
    assert "roles.py" in kept.read_text() and "Current thread" in kept.read_text()
    daemon.process.terminate()
    assert daemon.process.wait(10) == 0


def test_a_stopped_core_is_found_too(start: Start) -> None:
    daemon = start(SERVE, SERVE, restart_delays=[0.1], budget=2.0)
    daemon.wait_ready()
    started = time.monotonic()
    os.kill(pid_named(daemon, "EngineCore"), signal.SIGSTOP)
    daemon.wait_log("EngineCore 0 is started again")
    assert time.monotonic() - started < 6
    daemon.process.terminate()
    assert daemon.process.wait(10) == 0


def test_a_crash_loop_ends_the_daemon_with_its_cause(start: Start) -> None:
    daemon = start(SERVE, {"behaviour": "kill_self"}, restart_delays=[0.0], max_crashes=2)
    daemon.wait_ready()
    # Whoever watches the state, as systemd does, hears why.
    assert "EngineCore 0 crashes again and again" in daemon.wait_phase("stopping")["text"]
    assert daemon.process.wait(30) == 70
    assert daemon.last_line.endswith(
        "EngineCore 0 crashes again and again (more than 2 crashes in 60 s); the last time: "
        "EngineCore 0 was killed by SIGKILL and said no cause"
    )


def test_sigusr1_writes_the_stacks_of_all(start: Start) -> None:
    daemon = start(SERVE, SERVE)
    daemon.wait_ready()
    daemon.process.send_signal(signal.SIGUSR1)
    for name in ("frontend 0", "EngineCore 0"):
        daemon.wait_log(f"the threads of {name}:\n    Thread")
    daemon.process.terminate()
    assert daemon.process.wait(10) == 0
