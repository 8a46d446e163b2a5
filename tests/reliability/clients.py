"""Clients that watch a daemon while it is harmed: requests that stay open and note how they end, and a prober."""

import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

TIMEOUT = 60.0


class OpenRequest:
    """One request on a connection of its own, in a thread: what came, and when and how it ended."""

    def __init__(self, port: int, *, stream: bool, max_tokens: int = 1500, prompt: str = "hello") -> None:
        self.is_stream = stream
        self.status = 0
        self.texts: list[str] = []
        self.endings: list[str] = []
        """Terminal events: "length" and the like, or "error: ..."; a good client ignores what follows the first."""
        self.is_cut = False
        """Whether the connection ended without a terminal event."""
        self.ended_at = 0.0
        self.num_events = 0
        self._body = {
            "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "stream": stream,
        }  # fmt: skip
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        """What has been generated so far, as far as it was sent."""
        return "".join(self.texts)

    def wait_for_events(self, count: int, timeout: float = 20.0) -> None:
        """Wait until so many pieces of text have come."""
        deadline = time.monotonic() + timeout
        while self.num_events < count:
            assert time.monotonic() < deadline and self._thread.is_alive(), (self.num_events, self.endings)
            time.sleep(0.002)

    def join(self, timeout: float = 30.0) -> None:
        """Wait for the end."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"still open after {timeout} s: {self.num_events} events"

    def close(self) -> None:
        """Go away, as a client that has lost interest."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        data = json.dumps(self._body).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        try:
            with self._connection, self._connection.makefile("rb") as answer:
                self._connection.sendall(head.encode() + data)
                self.status, length = _read_head(answer)
                if length is None:
                    self._read_events(answer)
                else:
                    self._take_body(answer.read(length), length)
        except (OSError, ValueError):
            pass
        self.is_cut = not self.endings
        self.ended_at = self.ended_at or time.monotonic()

    def _take_body(self, data: bytes, length: int) -> None:
        if len(data) == length:
            self._take(json.loads(data))

    def _read_events(self, answer: Any) -> None:
        while line := answer.readline():
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                self._take(json.loads(line[6:]))

    def _take(self, message: dict[str, Any]) -> None:
        if "error" in message:
            self.endings.append(f"error: {message['error']['message']}")
        for choice in message.get("choices", ()):
            self.texts.append(choice["text"])
            self.num_events += 1
            if choice["finish_reason"] is not None:
                self.endings.append(choice["finish_reason"])
        if self.endings and not self.ended_at:
            self.ended_at = time.monotonic()


def _read_head(answer: Any) -> tuple[int, int | None]:
    """Status, and the length of the body if it is known."""
    status_line = answer.readline()
    if not status_line:
        raise ValueError("no answer")
    length = None
    while (line := answer.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return int(status_line.split()[1]), length


@dataclass(frozen=True, slots=True)
class Probe:
    """One look at /readyz."""

    time: float
    status: int
    """0: no answer in time, or the connection broke; -1: the connection was refused."""


class Prober:
    """Connects anew all the time. Use it as a context manager."""

    def __init__(self, port: int, interval: float = 0.03) -> None:
        self.probes: list[Probe] = []
        self._port = port
        self._interval = interval
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Prober":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_stopping.set()
        self._thread.join()

    def num_refused(self) -> int:
        """Connections that the kernel refused."""
        return sum(probe.status == -1 for probe in self.probes)

    def wait_for(self, status: int, since: float, timeout: float) -> float:
        """Seconds from `since` until a probe, begun after it, had that status."""
        deadline = time.monotonic() + timeout
        while True:
            for probe in self.probes:
                if probe.time >= since and probe.status == status:
                    return probe.time - since
            assert time.monotonic() < deadline, f"no {status} after {timeout} s: {self.probes[-5:]}"
            time.sleep(0.01)

    def _run(self) -> None:
        while not self._is_stopping.wait(self._interval):
            # Noted before the answer is taken: what it says was so at that time or later.
            status = probe(self._port)
            self.probes.append(Probe(time.monotonic(), status))


def probe(port: int, path: str = "/readyz", timeout: float = 1.0) -> int:
    """The status of a GET on a connection of its own; see Probe."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            line = connection.makefile("rb").readline()
    except ConnectionRefusedError:
        return -1
    except OSError:
        return 0
    return int(line.split()[1]) if line else 0
