"""A real daemon with a tiny model that can be harmed on order, and what must be true of it when it is over."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engined import faults
from tests.end_to_end.server import Server, descendants, start, title, wait_until_gone
from tests.reliability.clients import Prober

ROLES = {"supervisor": "engined: supervisor", "frontend": "engined: frontend 0", "engine": "engined: EngineCore 0"}
"""Title of each role's process."""
RANKS = {"rank 0": "engined: Worker_TP0", "rank 1": "engined: Worker_TP1"}
"""Of a daemon with --tp 2."""
FLAGS = ("--kv-cache-memory", "4MiB", "--num-threads", "1")
START_TIMEOUT = 60.0


class Daemon:
    """One `engined serve`, with its plan of faults. Made by `daemon`."""

    def __init__(self, model: Path, folder: Path, plan: str, flags: tuple[str, ...]) -> None:
        self.folder = folder
        self.started_at = time.monotonic()
        (folder / "tmp").mkdir()
        self.plan(plan)
        variables = {faults.VARIABLE: str(folder), "TMPDIR": str(folder / "tmp")}
        self.server: Server = start(model, folder, *FLAGS, *flags, variables=variables)
        self.port = int(self.server.url.rpartition(":")[2])
        self._seen: dict[int, int] = {}

    def plan(self, text: str) -> None:
        """Replace the plan of faults; see engined.faults."""
        draft = self.folder / "plan.new"
        draft.write_text(text)
        draft.replace(self.folder / "plan")

    def wait_struck(self, line: str, timeout: float = START_TIMEOUT) -> tuple[int, float]:
        """Wait until a fault has struck; the pid that it struck, and when."""
        path = faults.struck_path(self.folder, line)
        deadline = time.monotonic() + timeout
        while not path.exists():
            assert time.monotonic() < deadline, f"{line!r} was never reached\n{self.log()}"
            assert self.server.process.poll() is None, f"{line!r} was not reached\n{self.log()}"
            self.note_pids()
            time.sleep(0.005)
        pid, seconds = path.read_text().split()
        return int(pid), float(seconds)

    def struck(self, line: str) -> bool:
        """Whether a fault has struck."""
        return faults.struck_path(self.folder, line).exists()

    def forget(self, line: str) -> None:
        """Let a fault that has struck strike again."""
        faults.struck_path(self.folder, line).unlink(missing_ok=True)

    def log(self) -> str:
        """What the daemon has logged."""
        return self.server.log()

    def wait_log(self, text: str, timeout: float) -> None:
        """Wait for a text in the log."""
        deadline = time.monotonic() + timeout
        while text not in self.log():
            assert time.monotonic() < deadline, f"no {text!r} in\n{self.log()}"
            time.sleep(0.01)

    def note_pids(self) -> list[int]:
        """The processes of now, all of which must be gone at the end."""
        pids = descendants(self.server.pid)
        self._seen |= {pid: started for pid in pids if (started := start_time(pid))}
        return pids

    def pid(self, role: str, timeout: float = 10.0) -> int:
        """The process of a role, once there is one."""
        wanted = (ROLES | RANKS)[role]
        deadline = time.monotonic() + timeout
        while True:
            for pid in self.note_pids():
                if title(pid) == wanted:
                    return pid
            assert time.monotonic() < deadline, f"no {role}: {self.server.processes()}"
            time.sleep(0.01)

    def has_pid(self, pid: int) -> bool:
        """Whether a process of the daemon still runs."""
        return start_time(pid) is not None and start_time(pid) == self._seen.get(pid)

    def has_role(self, role: str) -> bool:
        """Whether a process of that role runs now."""
        return (ROLES | RANKS)[role] in map(title, self.note_pids())

    def wait_ready(self, timeout: float = START_TIMEOUT) -> float:
        """Wait until it serves; seconds that took."""
        started = time.monotonic()
        with Prober(self.port) as prober:
            seconds = prober.wait_for(200, started, timeout)
        self.note_pids()
        return seconds

    def harm(self, role: str, action: str) -> float:
        """Do something to a process, from outside or by its own hand; the time at which it was done."""
        pid = self.pid(role)
        if action == "exit":
            name = title(pid).removeprefix("engined: ").split()[0]
            line = f"{name} now 1 exit"
            self.forget(line)
            self.plan(f"{(self.folder / 'plan').read_text()}\n{line}")
            return self.wait_struck_or_gone(line, pid)
        os.kill(pid, getattr(signal, action))
        return time.monotonic()

    def wait_struck_or_gone(self, line: str, pid: int, timeout: float = 5.0) -> float:
        """Wait for a fault that may end the daemon; when it struck."""
        deadline = time.monotonic() + timeout
        while not self.struck(line):
            assert time.monotonic() < deadline, f"process {pid} has not heard {line!r}"
            time.sleep(0.002)
        return float(faults.struck_path(self.folder, line).read_text().split()[1])

    def resume(self) -> None:
        """Let paused processes go on, now and from now on."""
        (self.folder / "resume").touch()

    def wait_for_exit(self, timeout: float) -> int:
        """The exit code of the supervisor."""
        return self.server.process.wait(timeout)

    def check_nothing_is_left(self, timeout: float = 2.0) -> None:
        """No process and no socket that blocks. The supervisor must have ended."""
        assert self.server.process.poll() is not None
        wait_until_gone(self._left(), timeout)

    def end(self) -> None:
        """Whatever the test did, leave nothing behind."""
        self.note_pids()
        if self.server.process.poll() is None:
            self.server.process.kill()
        self.server.process.wait()
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left(self) -> list[int]:
        """Those of its processes that are still there; a number that changed hands is none of them."""
        return [pid for pid, started in self._seen.items() if start_time(pid) == started]


def start_time(pid: int) -> int | None:
    """When a process started, in ticks; None if there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def num_fds(pid: int) -> int:
    """Open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def daemon(model: Path, folder: Path, plan: str = "", *flags: str) -> Iterator[Daemon]:
    """A daemon that has just been started."""
    harmed = Daemon(model, folder, plan, flags)
    try:
        yield harmed
    except BaseException:
        print(harmed.log())
        raise
    finally:
        harmed.end()
