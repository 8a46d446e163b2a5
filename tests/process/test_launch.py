"""Real child processes: what they are given, what they report, and that they die with their parent."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engined.process.launch import ChildProcess, ChildSpec, describe_exit
from engined.process.status import ChildStatus

ROLES = Path(__file__).with_name("roles.py")


@pytest.fixture(autouse=True)
def importable_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children must find the roles module; they are started with -P, so only PYTHONPATH leads there."""
    monkeypatch.setenv("PYTHONPATH", str(ROLES.parent))


def start(role: str, fds: dict[str, int] | None = None, **data: Any) -> ChildProcess:
    return ChildProcess.start(ChildSpec(name=f"test {role}", entry="roles", data={"role": role, **data}, fds=fds or {}))


@pytest.fixture
def children() -> Iterator[list[ChildProcess]]:
    started: list[ChildProcess] = []
    yield started
    for child in started:
        child.stop(timeout=0)
        child.close()


def wait_for(child: ChildProcess, kind: str) -> ChildStatus:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for report in child.read_status():
            if report.kind == kind:
                return report
        time.sleep(0.01)
    raise AssertionError(f"{child.name} did not report {kind}")


def test_a_child_gets_its_data_and_its_title(children: list[ChildProcess]) -> None:
    child = start("report", text="a secret that must not stand in argv")
    children.append(child)
    ready = wait_for(child, "ready")
    assert ready.facts["pid"] == child.pid
    assert ready.facts["data"]["text"].startswith("a secret")
    assert Path(f"/proc/{child.pid}/cmdline").read_bytes().strip(b"\0 ") == b"engined: test report"
    assert child.poll() is None


def test_failures_travel_upward(children: list[ChildProcess]) -> None:
    failing, broken = start("fail"), start("bug")
    children += [failing, broken]
    assert failing.join(20) == 65
    assert broken.join(20) == 70
    failing.read_status()
    broken.read_status()
    assert failing.failure == ChildStatus(kind="failed", text="model.safetensors: cut off", exit_code=65)
    assert broken.failure is not None
    assert broken.failure.text == "test bug: KeyError: 'oops'"


def test_an_entry_that_cannot_be_imported_is_reported(children: list[ChildProcess]) -> None:
    child = ChildProcess.start(ChildSpec(name="nobody", entry="no_such_module", data={}))
    children.append(child)
    assert child.join(20) == 70
    child.read_status()
    assert child.failure is not None
    assert "no_such_module" in child.failure.text


def test_exit_codes_and_stop(children: list[ChildProcess]) -> None:
    leaving, stubborn = start("exit", code=3), start("stubborn")
    children += [leaving, stubborn]
    assert leaving.join(20) == 3
    wait_for(stubborn, "ready")
    code = stubborn.stop(timeout=0.3)
    assert describe_exit(stubborn.name, code) == "test stubborn was killed by SIGKILL"


def test_inherited_descriptors_and_no_others(children: list[ChildProcess]) -> None:
    read_end, write_end = os.pipe()
    child = start("write", fds={"out": write_end})
    children.append(child)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        assert file.read() == b"hello from the child"  # the end of file proves that nobody else holds the pipe
    assert child.join(20) == 0


def test_a_child_dies_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, str(ROLES.with_name("parent.py")), "roles"], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(5000), "the child outlived its parent"
        os.close(pidfd)
