"""The parent's side of a child process: start it, watch it, end it. Used by the supervisor and by the executor.

Children are started by exec of a fresh interpreter, never by fork of this one, and get only the descriptors that they
are meant to have. They are signalled through a pidfd, so that a recycled pid is never hit.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from engined.log import LogFormat, LogLevel, losses_fd
from engined.process.heartbeat import HeartbeatReader
from engined.process.status import ChildStatus, StatusReader
from engined.process.traces import TraceFile
from engined.protocol.codec import encode

# They belong to the supervisor alone: systemd accepts notifications and hands sockets to the main pid only.
_SUPERVISOR_ONLY_VARIABLES = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
    | {"LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to start."""

    name: str
    """Name in titles and logs, for example "EngineCore 0"."""
    entry: str
    """Module with `main(child: Child) -> int`."""
    data: dict[str, Any]
    """Handed to the child as JSON; message dataclasses inside are fine."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    fds: dict[str, int] = field(default_factory=dict)
    """Descriptors that the child inherits, under these names and with the same numbers."""
    environment: dict[str, str] = field(default_factory=dict)
    traces_fd: int | None = None
    """Where the child's stacks go on SIGUSR1. None: a file of its own, see ChildProcess.traces."""


class ChildProcess:
    """One running child. Owns its pidfd, its pipes and its memory. Start it from the main thread: the kernel ties the
    child's death signal to the thread that started it."""

    def __init__(
        self,
        name: str,
        process: "subprocess.Popen[bytes]",
        status: StatusReader,
        lifeline: int,
        heartbeat: HeartbeatReader,
        traces: TraceFile,
    ) -> None:
        self.name = name
        self.heartbeat = heartbeat
        self.traces = traces
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        self.status = status
        self.failure: ChildStatus | None = None
        self._process = process
        self._lifeline = lifeline

    @classmethod
    def start(cls, spec: ChildSpec) -> "ChildProcess":
        """Start the process; it may still be importing when this returns. Raises OSError if it cannot be started."""
        lifeline_read, lifeline_write = os.pipe()
        status_read, status_write = os.pipe()
        boot_fd = os.memfd_create("engined-boot", os.MFD_CLOEXEC)
        heartbeat, traces = HeartbeatReader(), TraceFile()
        traces_fd = traces.fd if spec.traces_fd is None else spec.traces_fd
        log_losses_fd = losses_fd()
        inherited = [heartbeat.fd, traces_fd, *([] if log_losses_fd is None else [log_losses_fd]), *spec.fds.values()]
        boot = {
            "name": spec.name,
            "entry": spec.entry,
            "log_level": spec.log_level,
            "log_format": spec.log_format,
            "lifeline_fd": lifeline_read,
            "status_fd": status_write,
            "heartbeat_fd": heartbeat.fd,
            "traces_fd": traces_fd,
            "log_losses_fd": log_losses_fd,
            "fds": spec.fds,
            "data": spec.data,
        }
        os.write(boot_fd, encode(boot))
        os.lseek(boot_fd, 0, os.SEEK_SET)
        environment = {k: v for k, v in os.environ.items() if k not in _SUPERVISOR_ONLY_VARIABLES}
        try:
            process = subprocess.Popen(
                # -P: the folder that the daemon was started in must not shadow installed modules.
                [sys.executable, "-P", "-m", "engined.process.child", str(os.getpid()), str(boot_fd)],
                pass_fds=(boot_fd, lifeline_read, status_write, *inherited),
                env=environment | spec.environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            heartbeat.close()
            traces.close()
            os.close(status_read)
            os.close(lifeline_write)
            raise
        finally:
            for fd in (boot_fd, lifeline_read, status_write):
                os.close(fd)
            heartbeat.close_fd()
        return cls(spec.name, process, StatusReader(status_read), lifeline_write, heartbeat, traces)

    def read_status(self) -> list[ChildStatus]:
        """Reports that arrived since the last call; a failure is kept in `failure` too."""
        reports = self.status.read()
        for report in reports:
            if report.kind == "failed":
                self.failure = report
        return reports

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a child that has ended is left alone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while the child runs. Reaps it."""
        return self._process.poll()

    def join(self, timeout: float) -> int | None:
        """Wait up to `timeout` seconds for the end; the exit code as from `poll`."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return self.poll() if poller.poll(max(timeout, 0.0) * 1000) else None

    def stop(self, timeout: float) -> int:
        """SIGTERM, then SIGKILL when `timeout` seconds did not suffice. Returns the exit code."""
        self.signal(signal.SIGTERM)
        if (code := self.join(timeout)) is None:
            self.signal(signal.SIGKILL)
            code = self._process.wait()
        return code

    def close(self) -> None:
        """Release the descriptors of a child that has been reaped."""
        assert self.poll() is not None, f"{self.name} still runs"
        os.close(self.pidfd)
        os.close(self._lifeline)
        self.status.close()
        self.heartbeat.close()
        self.traces.close()


def describe_exit(name: str, code: int) -> str:
    """Say how a child ended, for a log line: "EngineCore 0 was killed by SIGKILL"."""
    if code < 0:
        return f"{name} was killed by {signal.Signals(-code).name}"
    return f"{name} exited with code {code}"
