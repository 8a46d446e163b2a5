"""The supervisor's loop: starts the children, watches them, ends them in order. Runs in the main process.

Four calls: `start`, `wait_until_ready`, `wait_for_stop`, `stop`. The last three turn the same loop, over pidfds, status
pipes and signals, until their own condition holds, so a signal or a death is noticed in every phase.
"""

import logging
import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engined.process.launch import ChildProcess, ChildSpec, describe_exit
from engined.process.signals import SignalInbox
from engined.supervisor.reaper import become_subreaper, end_orphans, reap_orphans

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
WATCHED_SIGNALS = (*STOP_SIGNALS, signal.SIGCHLD)
"""What the SignalInbox of a Supervisor must collect."""

_ABORT_TIMEOUT = 2.0
"""Seconds until everything is killed after a second stop signal."""
_REPEAT_INTERVAL = 0.25
"""Seconds between the signals with which a child is then told to hurry."""
_END_TIMEOUT = 2.0
"""Seconds that a child with no work to finish gets to end after SIGTERM."""
_DRAIN_MARGIN = 3.0
"""Seconds beyond the drain limit, for the frontend to end the requests that did not make it."""
_ORPHAN_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class _Death:
    """A child that ended unasked or badly, or that was not ready in time."""

    name: str
    cause: str
    exit_code: int


class Supervisor:
    """Owns the child processes of one daemon. Use it as a context manager, on the main thread."""

    def __init__(self, signals: SignalInbox, drain_timeout: float) -> None:
        self._signals = signals
        self._drain_timeout = drain_timeout
        self._selector = selectors.DefaultSelector()
        self._groups: list[list[ChildProcess]] = []
        self._alive: dict[int, ChildProcess] = {}
        self._ready: dict[str, dict[str, Any]] = {}
        self._progress: dict[str, str] = {}
        self._asked_to_end: set[int] = set()
        self._deaths: list[_Death] = []
        self._num_stop_signals = 0
        self._abort_deadline = float("inf")
        self._was_ready = False

    def __enter__(self) -> "Supervisor":
        become_subreaper()
        self._selector.register(self._signals, selectors.EVENT_READ)
        return self

    def __exit__(self, *exception: object) -> None:
        for child in list(self._alive.values()):
            child.stop(timeout=0.0)
            self._forget(child)
        end_orphans(_ORPHAN_TIMEOUT)
        self._selector.close()

    def start(self, groups: Sequence[Sequence[ChildSpec]]) -> None:
        """Start all children at once. `groups` stand in the order in which they are ended: frontends before the cores
        that they talk to. Raises OSError if a process cannot be started."""
        for specs in groups:
            self._groups.append([])
            for spec in specs:
                self._start(spec, self._groups[-1])

    def wait_until_ready(self, timeout: float) -> dict[str, dict[str, Any]] | None:
        """Facts that each child reported when it was ready, by its name; None if a signal or a death came first."""
        deadline = time.monotonic() + timeout
        while not self._must_stop():
            waiting = [child for child in self._alive.values() if child.name not in self._ready]
            if not waiting:
                self._was_ready = True
                return self._ready
            if time.monotonic() >= deadline:
                self._add_death(_too_slow(waiting[0], timeout, self._progress.get(waiting[0].name)))
                break
            self._turn(deadline)
        return None

    def wait_for_stop(self) -> None:
        """Return when a stop signal has come, or a child has ended."""
        while not self._must_stop():
            self._turn(None)

    def stop(self) -> int:
        """End the children, group after group. Returns the exit code of the daemon; a cause is logged last of all."""
        is_drain = self._was_ready and not self._deaths
        if is_drain:
            logger.info("stopping: running requests get %g s; a second signal ends them now", self._drain_timeout)
        for group in self._groups:
            is_first = group is self._groups[0]
            self._stop_group(group, self._drain_timeout + _DRAIN_MARGIN if is_drain and is_first else _END_TIMEOUT)
        end_orphans(_ORPHAN_TIMEOUT)
        if not self._deaths:
            logger.info("stopped")
            return 0
        death = self._root_cause()
        logger.error("%s", death.cause)
        return death.exit_code

    def _must_stop(self) -> bool:
        return self._num_stop_signals > 0 or bool(self._deaths)

    def _start(self, spec: ChildSpec, group: list[ChildProcess]) -> None:
        child = ChildProcess.start(spec)
        group.append(child)
        self._alive[child.pid] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        self._selector.register(child.status.fd, selectors.EVENT_READ, child)
        logger.debug("started %s, pid %d", child.name, child.pid)

    def _turn(self, deadline: float | None) -> None:
        """Wait for events until `deadline` (monotonic seconds) and take them in."""
        timeout = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        children = {key.data.pid: key.data for key, _ in self._selector.select(timeout) if key.data is not None}
        for child in children.values():
            self._read_status(child)
            if (code := child.poll()) is not None:
                self._take_death(child, code)
        for number in self._signals.take():
            if number == signal.SIGCHLD:
                reap_orphans(self._alive.keys())
            elif number in STOP_SIGNALS:
                self._take_stop_signal(number)

    def _read_status(self, child: ChildProcess) -> None:
        for report in child.read_status():
            if report.kind == "ready":
                self._ready[child.name] = report.facts
            elif report.kind == "progress":
                self._progress[child.name] = report.text
                logger.info("%s: %s", child.name, report.text)

    def _take_death(self, child: ChildProcess, code: int) -> None:
        # What it wrote between our last read and its end.
        self._read_status(child)
        if child.pid not in self._asked_to_end or code not in (0, -signal.SIGTERM):
            logger.warning("%s", describe_exit(child.name, code))
            self._add_death(_describe_death(child, code))
        self._forget(child)

    def _add_death(self, death: _Death) -> None:
        self._deaths.append(death)
        # What is left has only to tell its clients.
        self._abort_deadline = min(self._abort_deadline, time.monotonic() + _END_TIMEOUT)

    def _forget(self, child: ChildProcess) -> None:
        del self._alive[child.pid]
        self._selector.unregister(child.pidfd)
        self._selector.unregister(child.status.fd)
        child.close()

    def _take_stop_signal(self, number: int) -> None:
        self._num_stop_signals += 1
        if self._num_stop_signals == 2:
            logger.warning("second %s: ending running requests now", signal.Signals(number).name)
            self._abort_deadline = min(self._abort_deadline, time.monotonic() + _ABORT_TIMEOUT)
        elif self._num_stop_signals == 3:
            logger.warning("third %s: killing all children", signal.Signals(number).name)
            self._abort_deadline = time.monotonic()

    def _stop_group(self, group: Sequence[ChildProcess], timeout: float) -> None:
        """SIGTERM; SIGKILL for what is left after `timeout` seconds, or at the abort deadline if that is sooner."""
        deadline = time.monotonic() + timeout
        self._signal(group)
        while left := [child for child in group if child.pid in self._alive]:
            now = time.monotonic()
            wake_up = min(deadline, self._abort_deadline)
            if now >= wake_up:
                for child in left:
                    logger.warning("%s (pid %d) did not end in time: killing it", child.name, child.pid)
                    child.stop(timeout=0.0)
                    self._forget(child)
                return
            if self._num_stop_signals >= 2:
                # Repeated, because two signals that come close together reach a process as one.
                self._signal(left)
                wake_up = min(wake_up, now + _REPEAT_INTERVAL)
            self._turn(wake_up)

    def _signal(self, children: Sequence[ChildProcess]) -> None:
        for child in children:
            if child.pid in self._alive:
                self._asked_to_end.add(child.pid)
                child.signal(signal.SIGTERM)

    def _root_cause(self) -> _Death:
        """The death that explains the others: a core's, if one died, since frontends fail for want of their core."""
        order = [child.name for group in reversed(self._groups) for child in group]
        return min(self._deaths, key=lambda death: order.index(death.name))


def _describe_death(child: ChildProcess, code: int) -> _Death:
    if child.failure is not None:
        exit_code = child.failure.exit_code or 70
        return _Death(child.name, f"{describe_exit(child.name, code)}: {child.failure.text}", exit_code)
    cause = f"{describe_exit(child.name, code)} and said no cause"
    return _Death(child.name, cause, 128 - code if code < 0 else code or 70)


def _too_slow(child: ChildProcess, timeout: float, progress: str | None) -> _Death:
    doing = f" (it was {progress})" if progress else ""
    return _Death(child.name, f"{child.name} was not ready after {timeout:g} s{doing}: raise --startup-timeout", 70)
