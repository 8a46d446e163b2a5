"""A real daemon for a test: started as a user would, on a free port and a private socket, ended by its pid."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

READY_TIMEOUT = 90.0


@dataclass
class Server:
    """A running daemon."""

    process: "subprocess.Popen[bytes]"
    url: str
    uds: Path
    log_path: Path
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self.process.pid

    def log(self) -> str:
        """Everything that the daemon has written to stderr."""
        return self.log_path.read_text()

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET."""
        return self._open(urllib.request.Request(self.url + path, headers=self.headers))

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and parsed body of a POST."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | self.headers
        status, answer = self._open(urllib.request.Request(self.url + path, data=data, headers=headers))
        return status, json.loads(answer)

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a successful POST whose answer is a stream of chunks."""
        headers = {"Content-Type": "application/json"} | self.headers
        data = json.dumps({**body, "stream": True}).encode()
        status, answer = self._open(urllib.request.Request(self.url + path, data=data, headers=headers))
        assert status == 200, answer
        events = [line.removeprefix("data: ") for line in answer.decode().splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]

    def complete(self, **fields: Any) -> dict[str, Any]:
        """The body of a successful POST /v1/completions."""
        status, body = self.post("/v1/completions", fields)
        assert status == 200, body
        assert isinstance(body, dict)
        return body

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric, over those that carry the given labels."""
        _, text = self.get("/metrics")
        total = 0.0
        for line in text.decode().splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.split("{")[0] == name and all(f'{k}="{v}"' in sample for k, v in labels.items()):
                total += float(value)
        return total

    def wait_for_metric(self, name: str, value: float, timeout: float = 10.0) -> None:
        """Wait until a metric has a value."""
        deadline = time.monotonic() + timeout
        while (seen := self.metric(name)) != value:
            assert time.monotonic() < deadline, f"{name} is {seen}, not {value}"
            time.sleep(0.05)

    def processes(self) -> dict[int, str]:
        """Pids and titles of the daemon: the supervisor and all that descends from it."""
        return {pid: title(pid) for pid in descendants(self.pid)}

    def stop(self, timeout: float = 20.0) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    @staticmethod
    def _open(request: urllib.request.Request) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=180) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


def free_port() -> int:
    """A TCP port of the loopback interface that nobody holds now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def title(pid: int) -> str:
    """The process title, without padding; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def parents() -> dict[int, int]:
    """Parent of each process that is not a zombie."""
    result = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                result[int(entry.name)] = int(fields[1])
    return result


def descendants(root: int) -> list[int]:
    """`root` and all processes below it, root first; empty if it is gone."""
    tree = parents()
    found = [root] if root in tree else []
    for pid in found:
        found += [child for child, parent in tree.items() if parent == pid]
    return found


def wait_until_gone(pids: list[int], timeout: float) -> None:
    """Wait until none of `pids` lives any more."""
    deadline = time.monotonic() + timeout
    while left := [pid for pid in pids if pid in parents()]:
        assert time.monotonic() < deadline, f"still alive: {[(pid, title(pid)) for pid in left]}"
        time.sleep(0.05)


def start(model: str | Path, folder: Path, *flags: str, variables: Mapping[str, str] | None = None) -> Server:
    """Start `engined serve` without waiting for it; `variables` join its environment."""
    port = free_port()
    uds = folder / "api.sock"
    log_path = folder / "server.log"
    arguments = ["serve", str(model), "--port", str(port), "--uds", str(uds), *flags]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder), "XDG_DATA_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    environment |= variables or {}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("engined")), *arguments], stdout=log, stderr=log, env=environment
        )
    return Server(process, f"http://127.0.0.1:{port}", uds, log_path)


def wait_until_ready(server: Server) -> None:
    """Wait for GET /readyz to answer 200; fails with the log if the daemon ends first."""
    deadline = time.monotonic() + READY_TIMEOUT
    while True:
        assert server.process.poll() is None, server.log()
        assert time.monotonic() < deadline, server.log()
        try:
            if server.get("/readyz")[0] == 200:
                return
        except OSError:
            pass  # the port is not bound yet
        time.sleep(0.1)


@contextmanager
def running(model: str | Path, folder: Path, *flags: str) -> Iterator[Server]:
    """A ready daemon, gone at the end, together with all its processes."""
    server = start(model, folder, *flags)
    try:
        wait_until_ready(server)
        yield server
    finally:
        pids = descendants(server.pid)
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            try:
                server.process.wait(20)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
        wait_until_gone(pids, 5.0)
