"""The supervisor's loop: starts the children, watches and restarts them, ends them in order. Runs in the main process.

Four calls: `start`, `wait_until_ready`, `wait_for_stop`, `stop`. The last three turn the same loop, over pidfds, status
pipes and signals, until their own condition holds, so a signal, a death or a silence is noticed in every phase.
"""

import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engined import log
from engined.process.board import DaemonState
from engined.process.heartbeat import Phase
from engined.process.launch import ChildProcess, describe_exit
from engined.process.signals import SignalInbox
from engined.supervisor.evidence import collect_traces, save
from engined.supervisor.failure import Failure, describe_death, root_cause
from engined.supervisor.family import Family
from engined.supervisor.reaper import become_subreaper, end_orphans, kill_orphans, reap_orphans
from engined.supervisor.service import Service, ServiceSpec
from engined.supervisor.state import describe_state

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
WATCHED_SIGNALS = (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1)
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
_CHECK_INTERVAL = 1.0
"""Seconds between two looks at the signs of life."""


Facts = dict[str, dict[str, Any]]
"""What each child reported when it was ready, by its name."""


class Supervisor:
    """Owns the child processes of one daemon. Use it as a context manager, on the main thread."""

    def __init__(
        self,
        signals: SignalInbox,
        drain_timeout: float,
        announce: Callable[[DaemonState], None],
        crash_folder: Path,
    ) -> None:
        """`announce` hears of every state, and of the same one again every second: whoever stops hearing it may know
        that this loop hangs. `crash_folder` takes the stacks of children that hung."""
        self._signals = signals
        self._drain_timeout = drain_timeout
        self._announce = announce
        self._crash_folder = crash_folder
        self._family = Family(signals)
        self._asked_to_end: set[int] = set()
        self._failures: list[Failure] = []
        self._num_stop_signals = 0
        self._abort_deadline = float("inf")
        self._was_ready = False
        self._is_stopping = False
        self._next_check = 0.0
        self._last_cause = ""
        self._num_reloads = 0
        self._start_time = time.monotonic()

    def __enter__(self) -> "Supervisor":
        become_subreaper()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_stopping = True
        self._family.close()
        end_orphans(_ORPHAN_TIMEOUT)

    def start(self, groups: Sequence[Sequence[ServiceSpec]]) -> None:
        """Start all services at once. `groups` stand in the order in which they are ended: frontends before the cores
        that they talk to. Raises OSError if a process cannot be started."""
        self._family.start_all(groups)

    def wait_until_ready(self) -> Facts | None:
        """Return when every child is ready; None if a signal or a failure came first."""
        while not self._must_stop():
            facts = {service.name: service.facts for service in self._family.services if service.facts is not None}
            if len(facts) == len(self._family.services):
                self._was_ready = True
                self._publish()
                return facts
            self._turn(None)
        return None

    def wait_for_stop(self) -> None:
        """Return when a stop signal has come, or the daemon cannot go on."""
        while not self._must_stop():
            self._turn(None)

    def stop(self) -> int:
        """End the children, group after group. Returns the exit code of the daemon; a cause is logged last of all."""
        self._is_stopping = True
        self._publish()
        is_drain = self._was_ready and not self._failures
        if is_drain:
            logger.info("stopping: running requests get %g s; a second signal ends them now", self._drain_timeout)
        for group in self._family.groups:
            is_first = group is self._family.groups[0]
            self._stop_group(group, self._drain_timeout + _DRAIN_MARGIN if is_drain and is_first else _END_TIMEOUT)
        end_orphans(_ORPHAN_TIMEOUT)
        if not self._failures:
            logger.info("stopped")
            return 0
        failure = self._root_cause()
        logger.error("%s", failure.cause)
        return failure.exit_code

    def _must_stop(self) -> bool:
        return self._num_stop_signals > 0 or bool(self._failures)

    def _turn(self, deadline: float | None) -> None:
        """Wait for events until `deadline` (monotonic seconds), a restart or a check is due, and take them in."""
        wake_ups = [
            self._next_check,
            *(service.restart_time for service in self._family.services if service.restart_time),
        ]
        wake_up = min(wake_ups if deadline is None else [deadline, *wake_ups])
        for service in self._family.wait(wake_up - time.monotonic()):
            self._take_events(service)
        for number in self._signals.take():
            self._take_signal(number)
        if not self._is_stopping:
            self._restart_what_is_due()
        if time.monotonic() >= self._next_check:
            self._check_signs_of_life()
            self._publish()

    def _take_events(self, service: Service) -> None:
        child = service.child
        if child is None:
            return
        self._read_status(service, child)
        if (code := child.poll()) is not None:
            # What it wrote between our last read and its end.
            self._read_status(service, child)
            self._take_death(service, child, code)

    def _read_status(self, service: Service, child: ChildProcess) -> None:
        for report in child.read_status():
            if report.kind == "ready":
                service.note_ready(report.facts)
                self._publish()
            elif report.kind == "progress":
                if service.note_progress(report.text, report.detail):
                    logger.info("%s: %s", child.name, service.progress)
                self._publish()

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            reap_orphans(self._family.pids)
        elif number in STOP_SIGNALS:
            self._take_stop_signal(number)
        elif number == signal.SIGHUP:
            logger.info("SIGHUP: the children read their files again")
            self._num_reloads += 1
            for child in self._family.children:
                # A child that has not come so far reads them for the first time.
                if child.heartbeat.read().phase is Phase.SERVING:
                    child.signal(signal.SIGHUP)
            self._publish()
        elif number == signal.SIGUSR1:
            self._write_all_traces()

    def _take_death(self, service: Service, child: ChildProcess, code: int) -> None:
        is_asked = child.pid in self._asked_to_end and code in (0, -signal.SIGTERM)
        failure = None if is_asked else describe_death(child, code)
        self._family.forget(service)
        if failure is not None:
            logger.warning("%s", failure.cause)
            self._recover(service, failure)
        self._publish()

    def _recover(self, service: Service, failure: Failure) -> None:
        """Plan the restart of a service that ended badly, or the end of the daemon."""
        policy = service.spec.policy
        if self._is_stopping or policy is None or not service.was_ready:
            self._add_failure(failure)
            return
        self._last_cause = failure.cause
        for follower in self._family.services:
            if follower.spec.follows == service.name:
                follower.facts = None
        delay = policy.note_crash(time.monotonic())
        if delay is None:
            cause = f"{service.name} crashes again and again ({policy.summary}); the last time: {failure.cause}"
            self._add_failure(Failure(service.name, cause, 70))
            return
        service.restart_time = time.monotonic() + delay
        logger.warning("%s is started again in %g s", service.name, delay)

    def _restart_what_is_due(self) -> None:
        for service in self._family.services:
            if service.restart_time is not None and time.monotonic() >= service.restart_time:
                # The ranks of a dead core end by themselves; whatever holds their memory must be gone before the next.
                kill_orphans(self._family.pids)
                reap_orphans(self._family.pids)
                service.num_restarts += 1
                try:
                    self._family.start(service)
                except OSError as error:
                    service.restart_time = None
                    self._recover(service, Failure(service.name, f"{service.name} cannot be started: {error}", 71))

    def _check_signs_of_life(self) -> None:
        self._next_check = time.monotonic() + _CHECK_INTERVAL
        for service in self._family.services:
            silence = service.silence()
            if silence is not None and service.child is not None:
                self._end_hung(service, service.child, silence)

    def _end_hung(self, service: Service, child: ChildProcess, silence: float) -> None:
        phase = child.heartbeat.read().phase
        doing = f"{phase.name}, {service.progress}" if service.progress and service.facts is None else phase.name
        logger.error("%s gave no sign of life for %.1f s (%s): ending it", child.name, silence, doing)
        traces = collect_traces(child)
        if traces:
            path = save(self._crash_folder, child.name, traces)
            logger.error("what its threads were doing%s:\n%s", "" if path is None else f" (kept in {path})", traces)
        self._read_status(service, child)
        code = child.stop(timeout=0.0)
        self._family.forget(service)
        cause = f"{child.name} hung: no sign of life for {silence:.1f} s ({doing})"
        logger.debug("%s", describe_exit(child.name, code))
        self._recover(service, Failure(service.name, cause, 70))
        self._publish()

    def _write_all_traces(self) -> None:
        """SIGUSR1: the stacks of every process, in the log."""
        for child in self._family.children:
            logger.info("the threads of %s:\n%s", child.name, collect_traces(child) or "(it does not answer)")

    def _add_failure(self, failure: Failure) -> None:
        self._failures.append(failure)
        # What is left has only to tell its clients.
        self._abort_deadline = min(self._abort_deadline, time.monotonic() + _END_TIMEOUT)

    def _take_stop_signal(self, number: int) -> None:
        self._num_stop_signals += 1
        if self._num_stop_signals == 2:
            logger.warning("second %s: ending running requests now", signal.Signals(number).name)
            self._abort_deadline = min(self._abort_deadline, time.monotonic() + _ABORT_TIMEOUT)
        elif self._num_stop_signals == 3:
            logger.warning("third %s: killing all children", signal.Signals(number).name)
            self._abort_deadline = time.monotonic()

    def _stop_group(self, group: Sequence[Service], timeout: float) -> None:
        """SIGTERM; SIGKILL for what is left after `timeout` seconds, or at the abort deadline if that is sooner."""
        deadline = time.monotonic() + timeout
        self._terminate(group)
        while left := [service for service in group if service.child is not None]:
            now = time.monotonic()
            wake_up = min(deadline, self._abort_deadline)
            if now >= wake_up:
                for service in left:
                    logger.warning("%s did not end in time: killing it", service.name)
                    self._family.kill(service)
                return
            if self._num_stop_signals >= 2:
                # Repeated, because two signals that come close together reach a process as one.
                self._terminate(left)
                wake_up = min(wake_up, now + _REPEAT_INTERVAL)
            self._turn(wake_up)

    def _terminate(self, services: Sequence[Service]) -> None:
        for service in services:
            if service.child is not None:
                self._asked_to_end.add(service.child.pid)
                service.child.signal(signal.SIGTERM)

    def _publish(self) -> None:
        is_stopping = self._is_stopping or self._must_stop()
        last_cause = self._last_cause
        if is_stopping:
            last_cause = self._root_cause().cause if self._failures else ""
        state = describe_state(
            self._family.services, was_ready=self._was_ready, is_stopping=is_stopping, last_cause=last_cause
        )
        self._announce(
            dataclasses.replace(
                state,
                num_reloads=self._num_reloads,
                num_log_lines_dropped=log.num_dropped(),
                start_time=self._start_time,
            )
        )

    def _root_cause(self) -> Failure:
        return root_cause(self._failures, [service.name for service in reversed(self._family.services)])
