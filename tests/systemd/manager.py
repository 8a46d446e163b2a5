"""A service manager for one daemon: it opens the sockets, hands them over, and hears the notifications."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

WATCHDOG_SECONDS = 3.0
READY_TIMEOUT = 90.0

# What systemd does between fork and exec: the sockets become descriptors 3, 4, ..., and the pid is known.
_EXEC = """
import os, sys
fds = [int(fd) for fd in sys.argv[1].split(",") if fd]
moved = [os.dup2(fd, 200 + index) for index, fd in enumerate(fds)]
for index, fd in enumerate(moved):
    os.dup2(fd, 3 + index)
os.environ["LISTEN_PID"] = os.environ["WATCHDOG_PID"] = str(os.getpid())
os.closerange(3 + len(fds), 300)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Manager:
    """Holds the sockets of a service through all its starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log_path = folder / "server.log"
        self.messages: list[tuple[float, dict[str, str]]] = []
        """What was heard, with the monotonic second."""
        self._notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notifications.bind(str(folder / "notify"))
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(folder / "api.sock"))
        self.unix.listen()
        self.process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self.tcp.getsockname()[1]
        return port

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start `engined serve` on the sockets."""
        fds = (self.tcp.fileno(), self.unix.fileno())
        environment = os.environ | {
            "XDG_RUNTIME_DIR": str(self.folder),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "HF_HUB_OFFLINE": "1",
            "NOTIFY_SOCKET": str(self.folder / "notify"),
            "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6)),
            "LISTEN_FDS": str(len(fds)),
            "LISTEN_FDNAMES": "http:uds",
        }
        program = str(Path(sys.executable).with_name("engined"))
        helper = [sys.executable, "-S", "-c", _EXEC, ",".join(map(str, fds))]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*helper, program, "serve", *arguments], env=environment, pass_fds=fds, stdout=log, stderr=log
            )
        return self.process

    def stop(self) -> int:
        """SIGTERM, or SIGKILL if that does not end it; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self) -> None:
        """End the daemon and close the sockets."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.stop()
        self.tcp.close()
        self.unix.close()
        self._notifications.sendto(b"", str(self.folder / "notify"))

    def said(self, name: str) -> list[str]:
        """All values of one variable, in order."""
        return [message[name] for _, message in list(self.messages) if name in message]

    def wait_for(self, name: str, count: int = 1, timeout: float = READY_TIMEOUT) -> str:
        """The `count`th value of a variable."""
        deadline = time.monotonic() + timeout
        while len(self.said(name)) < count:
            assert self.process is not None and self.process.poll() is None, self.log_path.read_text()
            assert time.monotonic() < deadline, (self.messages, self.log_path.read_text())
            time.sleep(0.02)
        return self.said(name)[count - 1]

    def _listen(self) -> None:
        with self._notifications:
            while data := self._notifications.recv(65536):
                lines = (line.partition("=") for line in data.decode().splitlines())
                self.messages.append((time.monotonic(), {name: value for name, _, value in lines}))
