"""The system says no: no descriptor, no room on the disk, nobody to read the log. The daemon goes on."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from engined import faults
from tests.end_to_end.server import Server, descendants, free_port, wait_until_gone, wait_until_ready
from tests.reliability.clients import OpenRequest, probe
from tests.reliability.daemon import FLAGS, Daemon, num_fds
from tests.reliability.fleet import Fleet


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.alone
def test_out_of_descriptors(fleet: Fleet) -> None:
    """R24: connections wait, what runs goes on, nothing spins; a second after there is room, all is normal."""
    harmed = fleet.ready("frontend")
    frontend = harmed.pid("frontend")
    soft, hard = resource.prlimit(frontend, resource.RLIMIT_NOFILE)
    stream = OpenRequest(harmed.port, stream=True)
    stream.wait_for_events(3)
    resource.prlimit(frontend, resource.RLIMIT_NOFILE, (num_fds(frontend), hard))
    before = cpu_seconds(frontend)
    waiting = [socket.create_connection(("127.0.0.1", harmed.port), timeout=5) for _ in range(20)]
    events = stream.num_events
    time.sleep(1.0)
    stream.close()
    stream.join()
    assert stream.num_events > events
    # The stream costs too; a loop that spins would take all of the second.
    assert cpu_seconds(frontend) - before < 0.9
    resource.prlimit(frontend, resource.RLIMIT_NOFILE, (soft, hard))
    started = time.monotonic()
    while probe(harmed.port) != 200:
        assert time.monotonic() - started < 1.5
    print(f"normal again after {time.monotonic() - started:.2f} s")
    for connection in waiting:
        connection.close()
    assert harmed.pid("frontend") == frontend
    fleet.keep(harmed)


def test_no_room_for_files(fleet: Fleet) -> None:
    """R25: the upload is refused with a server's error, the next one is taken."""
    harmed = fleet.ready("frontend")
    harmed.wait_ready()
    for number in (1, 2):
        line = f"frontend disk {number} enospc"
        harmed.forget(line)
        harmed.plan(line)
        time.sleep(0.05)
        status, body = upload(harmed)
        assert harmed.struck(line) and status >= 500, (status, body)
        assert "Errno" not in body and str(harmed.folder) not in body
        assert upload(harmed)[0] == 200
        assert not list((harmed.folder / "engined" / "files").glob("*.tmp"))
    harmed.plan("")
    fleet.keep(harmed)


@pytest.mark.reliability_full
def test_no_room_for_the_evidence_of_a_hang(fleet: Fleet) -> None:
    """R25: the stacks are in the log, and the engine is restarted all the same."""
    harmed = fleet.ready("engine")
    engine = harmed.pid("engine")
    harmed.plan("supervisor disk 1 enospc\nEngineCore step 1 hang")
    time.sleep(0.05)
    request = OpenRequest(harmed.port, stream=False)
    request.join()
    assert len(request.endings) == 1 and request.endings[0].startswith("error: the engine died")
    assert harmed.struck("supervisor disk 1 enospc")
    harmed.wait_log("what its threads were doing:\n", 5)
    harmed.wait_ready()
    assert harmed.pid("engine") != engine
    harmed.plan("")
    fleet.give_back(harmed)


def upload(harmed: Daemon) -> tuple[int, str]:
    """POST /v1/files; status and body."""
    boundary = uuid.uuid4().hex
    parts = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{{}}\r\n'
        f"--{boundary}--\r\n"
    ).encode()
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: multipart/form-data; boundary={boundary}\r\nContent-Length: {len(parts)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", harmed.port), timeout=10) as connection:
        connection.sendall(head.encode() + parts)
        answer = connection.makefile("rb").read().decode()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


@pytest.fixture
def log_pipe() -> "tuple[int, int]":
    return os.pipe()


def test_nobody_reads_the_log(model: Path, tmp_path: Path, log_pipe: tuple[int, int]) -> None:
    """R26: the other end of stderr goes away; the daemon serves on, restarts a child, and ends properly."""
    read_end, write_end = log_pipe
    port = free_port()
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    environment.pop(faults.VARIABLE, None)
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("engined")), "serve", str(model), "--port", str(port)]
        + ["--uds", str(tmp_path / "api.sock"), *FLAGS],
        stdout=write_end,
        stderr=write_end,
        env=environment,
    )
    os.close(write_end)
    os.close(read_end)
    server = Server(process, f"http://127.0.0.1:{port}", tmp_path / "api.sock", tmp_path / "none")
    (tmp_path / "none").touch()
    try:
        wait_until_ready(server)
        assert server.complete(prompt="hello", max_tokens=2)["usage"]["completion_tokens"] == 2
        [frontend] = [pid for pid, name in server.processes().items() if "frontend" in name]
        os.kill(frontend, signal.SIGKILL)
        time.sleep(0.2)
        wait_until_ready(server)
        assert server.complete(prompt="hello", max_tokens=2)["usage"]["completion_tokens"] == 2
        pids = descendants(server.pid)
        assert server.stop() == 0
        wait_until_gone(pids, 2.0)
    finally:
        server.process.kill()
        server.process.wait()
