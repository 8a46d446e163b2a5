"""Ready daemons for tests that harm them: one that has survived serves the next test, since a start is what costs."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.reliability.daemon import RANKS, Daemon, daemon

STEP_TIMEOUT = 3.0
FRONTEND_BUDGET = 3.0
IDLE_BUDGET = 6.0
"""Well above the two seconds between two signs of life of an engine, or of a rank, at rest."""
SHUTDOWN_TIMEOUT = 3.0
LIMITS = f"set frontend_budget {FRONTEND_BUDGET}\nset idle_budget {IDLE_BUDGET}\n"
FLAGS = ("--step-timeout", f"{STEP_TIMEOUT:g}", "--shutdown-timeout", f"{SHUTDOWN_TIMEOUT:g}")
MAX_CRASHES = 2
"""Crashes of a child before a daemon is replaced: each one makes the next restart wait longer."""


class Fleet:
    """At most one ready daemon a number of ranks."""

    def __init__(self, model: Path, folders: pytest.TempPathFactory) -> None:
        self.model = model
        self._folders = folders
        self._stack = ExitStack()
        self._ready: dict[int, Daemon] = {}
        self._num_crashes: dict[Daemon, int] = {}

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            for unharmed in self._ready.values():
                end(unharmed)
        finally:
            self._stack.close()

    def start(self, plan: str, *flags: str) -> Daemon:
        """A new daemon that is just starting."""
        # A short name: Unix sockets live in it.
        folder = self._folders.mktemp("d")
        return self._stack.enter_context(daemon(self.model, folder, LIMITS + plan, *FLAGS, *flags))

    def ready(self, role: str) -> Daemon:
        """A daemon that serves and has processes of that role. It is the caller's until `give_back`."""
        num_ranks = 2 if role in RANKS else 1
        harmed = self._ready.pop(num_ranks, None)
        if harmed is None:
            harmed = self.start("", *(("--tp", "2") if num_ranks == 2 else ()))
            self._num_crashes[harmed] = 0
        harmed.wait_ready()
        return harmed

    def keep(self, unharmed: Daemon) -> None:
        """The daemon serves and has lost no process."""
        self._num_crashes.setdefault(unharmed, 0)
        other = self._ready.pop(num_ranks := 2 if unharmed.has_role("rank 0") else 1, None)
        self._ready[num_ranks] = unharmed
        if other is not None:
            end(other)

    def give_back(self, harmed: Daemon) -> None:
        """The daemon has survived the loss of a process. If it has survived enough, it is ended, properly."""
        self._num_crashes[harmed] += 1
        if self._num_crashes[harmed] < MAX_CRASHES:
            self.keep(harmed)
        else:
            end(harmed)


def end(harmed: Daemon) -> float:
    """SIGTERM to an idle daemon, which then leaves nothing behind; seconds that it took."""
    started = time.monotonic()
    harmed.note_pids()
    harmed.server.process.terminate()
    assert harmed.wait_for_exit(10) == 0, harmed.log()
    harmed.check_nothing_is_left()
    return time.monotonic() - started
