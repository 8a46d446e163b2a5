"""The first code of every child process: `python -m engined.process.child PARENT_PID BOOT_FD`.

It ties its life to the parent's before anything heavy is imported, reads what the parent hands over, then imports the
role's module (for example engined.core.main) and calls its `main(child)`. A failure, an import error included, is
reported to the parent, and its exit code is the error's own.
"""

import faulthandler
import importlib
import logging
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

import setproctitle

from engined import faults, log
from engined.config.journal import writes_to_journal
from engined.errors import EnginedError
from engined.process.collector import paused_collector
from engined.process.heartbeat import HeartbeatWriter, Phase
from engined.process.import_progress import ImportProgress
from engined.process.lifeline import arm_parent_death_signal, watch_lifeline
from engined.process.oom import give_up_protection
from engined.process.status import ChildStatus, StatusWriter, failure_status
from engined.process.traces import write_traces_on_signal
from engined.protocol.codec import decode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootData:
    """What the parent hands to a child through a memfd."""

    name: str
    """Name in titles and logs, for example "EngineCore 0"."""
    entry: str
    """Module whose `main(child)` is the process."""
    log_level: log.LogLevel
    log_format: log.LogFormat
    lifeline_fd: int
    status_fd: int
    heartbeat_fd: int
    traces_fd: int
    log_losses_fd: int | None
    fds: dict[str, int]
    data: dict[str, Any]


class Child:
    """This process, as its role sees it: its name, its data, its inherited descriptors, and the way to report."""

    def __init__(self, boot: BootData) -> None:
        self.name = boot.name
        self.data = boot.data
        self.fds = boot.fds
        self.heartbeat = HeartbeatWriter(boot.heartbeat_fd)
        self.traces_fd = boot.traces_fd
        """Where SIGUSR1 writes the stacks; children of this process may share it."""
        self._status = StatusWriter(boot.status_fd)
        self.heartbeat.beat(Phase.STARTING)
        self._imports = ImportProgress(self.heartbeat.repeat)

    def report_progress(self, phase: str, detail: str = "") -> None:
        """Tell the parent what is being done and how far it is, for its log and for readiness. A sign of life too."""
        self.heartbeat.beat(Phase.LOADING)
        self._status.send(ChildStatus(kind="progress", text=phase, detail=detail))

    def report_ready(self, **facts: Any) -> None:
        """Tell the parent that this process serves now."""
        self._imports.close()
        self._status.send(ChildStatus(kind="ready", facts=facts))

    def report_failure(self, error: BaseException) -> None:
        """Tell the parent why this process is about to end."""
        self._status.send(failure_status(self.name, error))


def _read_boot(fd: int) -> BootData:
    with os.fdopen(fd, "rb") as file:
        return decode(file.read(), BootData)


def run_child(parent_pid: int, boot_fd: int) -> int:
    """Be one child process from its first line to its exit code."""
    arm_parent_death_signal(parent_pid)
    give_up_protection()
    boot = _read_boot(boot_fd)
    watch_lifeline(boot.lifeline_fd)
    # Ctrl-C reaches the whole terminal group; only the supervisor acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    write_traces_on_signal(boot.traces_fd)
    setproctitle.setproctitle(f"engined: {boot.name}")
    log.setup(
        boot.name,
        boot.log_level,
        boot.log_format,
        is_journal=writes_to_journal(os.environ),
        losses_fd=boot.log_losses_fd,
    )
    faults.arm(os.environ, boot.name)
    child = Child(boot)
    faults.point("spawn")
    try:
        with paused_collector():
            role = importlib.import_module(boot.entry)
        exit_code: int = role.main(child)
    except EnginedError as error:
        child.report_failure(error)
        logger.error("%s", error)
        return error.exit_code
    except Exception as error:  # the outermost loop of the process: report and die
        child.report_failure(error)
        logger.exception("%s failed", boot.name)
        return 70
    return exit_code


def _exit_without_teardown(exit_code: int) -> None:
    """Leave at once: interpreter shutdown would wait for IO threads that sit in a system call."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    _exit_without_teardown(run_child(int(sys.argv[1]), int(sys.argv[2])))
