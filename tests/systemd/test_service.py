"""A real daemon under a service manager that the tests play: what it says, and that its sockets outlive it."""

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.server import descendants, free_port
from tests.systemd.manager import WATCHDOG_SECONDS, Manager

SMALL = ("--kv-cache-memory", "256MiB", "--max-model-len", "2048")


@pytest.fixture(scope="module")
def manager(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager whose service is ready. The last test of this file ends the service."""
    manager = Manager(tmp_path_factory.mktemp("service"))
    try:
        manager.start(str(default_gguf), *SMALL)
        manager.wait_for("READY")
        yield manager
    finally:
        manager.close()


def _get(address: tuple[str, int] | str, path: str, timeout: float = 30.0) -> int:
    """Status of a GET through TCP or a Unix socket."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(timeout)
        client.connect(address)
        return _ask(client, path)


def _ask(client: socket.socket, path: str) -> int:
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return _answer(client)


def _answer(client: socket.socket) -> int:
    response = http.client.HTTPResponse(client)
    response.begin()
    response.read()
    return response.status


def _addresses(manager: Manager) -> list[tuple[str, int] | str]:
    return [("127.0.0.1", manager.port), str(manager.folder / "api.sock")]


def test_says_what_it_does_and_that_it_is_ready_once(manager: Manager) -> None:
    # After the canary: whoever hears READY=1 is served.
    assert [_get(address, "/readyz") for address in _addresses(manager)] == [200, 200]
    assert manager.said("READY") == ["1"]
    names = [list(message) for _, message in manager.messages]
    before_ready = names[: names.index(["READY", "STATUS"])]
    assert ["EXTEND_TIMEOUT_USEC"] in before_ready and set(manager.said("EXTEND_TIMEOUT_USEC")) == {"60000000"}
    progress = [status for status in manager.said("STATUS") if status.startswith("starting: EngineCore 0: loading")]
    assert progress and manager.said("STATUS")[-1] == "serving"
    assert "--host and --port do not count" in manager.log_path.read_text()


def test_children_know_nothing_of_the_manager(manager: Manager) -> None:
    assert manager.process is not None
    children = descendants(manager.process.pid)[1:]
    assert len(children) >= 2
    for pid in children:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert not re.search(rb"NOTIFY_SOCKET|WATCHDOG_|LISTEN_", environment), pid


def test_reload_is_announced_and_ended(manager: Manager) -> None:
    assert manager.process is not None
    before = time.monotonic_ns() // 1000
    manager.process.send_signal(signal.SIGHUP)
    manager.wait_for("READY", count=2, timeout=10)
    assert before <= int(manager.wait_for("MONOTONIC_USEC")) <= time.monotonic_ns() // 1000
    names = [list(message) for _, message in manager.messages if "STATUS" not in message]
    assert names.index(["RELOADING", "MONOTONIC_USEC"]) < names.index(["READY"])


def test_watchdog_is_fed_until_the_supervisor_hangs(manager: Manager) -> None:
    assert manager.process is not None
    count = len(manager.said("WATCHDOG"))
    manager.wait_for("WATCHDOG", count + 2, timeout=WATCHDOG_SECONDS)
    manager.process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    count = len(manager.said("WATCHDOG"))
    # Longer than a third of the interval, after which it would have been fed.
    time.sleep(WATCHDOG_SECONDS / 3 + 0.5)
    assert len(manager.said("WATCHDOG")) == count
    manager.process.send_signal(signal.SIGCONT)
    manager.wait_for("WATCHDOG", count + 1, timeout=WATCHDOG_SECONDS)
    assert _get(_addresses(manager)[0], "/readyz") == 200


def test_sockets_outlive_the_service(manager: Manager, default_gguf: Path) -> None:
    inode = (manager.folder / "api.sock").stat().st_ino
    num_ready = len(manager.said("READY"))
    assert manager.stop() == 0
    assert manager.said("STOPPING") == ["1"]
    assert manager.said("STATUS")[-1] == "stopping: the server is shutting down"

    clients = []
    for address in _addresses(manager):
        # Nobody serves, and nobody is refused.
        client = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        client.settimeout(30)
        client.connect(address)
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        clients.append(client)
    manager.start(str(default_gguf), *SMALL)
    for client in clients:
        with client:
            assert _answer(client) == 200
    assert manager.stop() == 0
    assert len(manager.said("READY")) == num_ready, "it was stopped while it loaded"
    assert (manager.folder / "api.sock").stat().st_ino == inode


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="there is no systemd-socket-activate here")
def test_serves_on_the_sockets_of_systemd(default_gguf: Path, tmp_path: Path) -> None:
    port, path, log_path = free_port(), str(tmp_path / "api.sock"), tmp_path / "server.log"
    variables = {
        "XDG_RUNTIME_DIR": tmp_path,
        "XDG_DATA_HOME": tmp_path / "data",
        "HF_HUB_OFFLINE": 1,
        "HOME": os.environ["HOME"],
    }
    command = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}", "-l", path, "--fdname=http:uds"]
    command += [f"--setenv={name}={value}" for name, value in variables.items()]
    command += [str(Path(sys.executable).with_name("engined")), "serve", str(default_gguf), *SMALL]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 10
        while not os.path.exists(path):
            assert time.monotonic() < deadline, log_path.read_text()
            time.sleep(0.02)
        # The first connection starts it.
        assert _get(("127.0.0.1", port), "/livez") == 200
        assert _get(path, "/livez") == 200
        log_text = log_path.read_text()
        assert f"HTTP is on the service manager's http://127.0.0.1:{port}" in log_text
        assert "the Unix socket is the service manager's" in log_text
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert os.path.exists(path), "the file is not ours to remove"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
