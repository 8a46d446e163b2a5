"""Tells the world how the daemon is doing: the frontends by the board, the service manager by notifications.

Main process; the supervisor calls it at every change of its state, and every second. That it is called is itself the
sign of life that the watchdog wants: the same loop ends a child that is silent beyond its limit, so whatever state it
announces is one within the limits. When the loop hangs, the notifications stop.
"""

import time

from engined.process.board import Board, DaemonState
from engined.supervisor.sdnotify import ServiceManager

ANNOUNCE_INTERVAL = 1.0
"""Seconds, at most, between two calls of a supervisor that is well."""
EXTENSION_INTERVAL = 10.0
EXTENSION = 60.0
"""Seconds that the manager is to wait for the next extension while we load or drain."""


class Announcer:
    """Remembers what was said, so that each thing is said once, or as often as the manager wants to hear it."""

    def __init__(self, board: Board, manager: ServiceManager) -> None:
        self._board = board
        self._manager = manager
        self._status = ""
        self._phase: str = "starting"
        self._is_ready = False
        self._num_reloads = 0
        self._last_extension = float("-inf")
        self._last_watchdog = float("-inf")

    def announce(self, state: DaemonState) -> None:
        """Publish `state`."""
        self._board.publish(state)
        if not self._manager:
            return
        self._tell_phase(state)
        self._tell_reload(state)
        self._tell_status(state)
        self._keep_alive(state)

    def _tell_phase(self, state: DaemonState) -> None:
        if state.phase == "serving" and not self._is_ready:
            self._is_ready = True
            self._manager.notify(READY=1, STATUS=self._take_status(state))
        elif state.phase == "stopping" and self._phase != "stopping":
            self._manager.notify(STOPPING=1, STATUS=self._take_status(state))
        self._phase = state.phase

    def _tell_reload(self, state: DaemonState) -> None:
        """SIGHUP was passed on. Before READY=1 the manager would take the second one for the end of the start."""
        if state.num_reloads > self._num_reloads and self._is_ready and state.phase != "stopping":
            self._manager.notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
            self._manager.notify(READY=1)
        self._num_reloads = state.num_reloads

    def _tell_status(self, state: DaemonState) -> None:
        if _status_line(state) != self._status:
            self._manager.notify(STATUS=self._take_status(state))

    def _keep_alive(self, state: DaemonState) -> None:
        now = time.monotonic()
        if (not self._is_ready or state.phase == "stopping") and now - self._last_extension >= EXTENSION_INTERVAL:
            self._last_extension = now
            self._manager.notify(EXTEND_TIMEOUT_USEC=int(EXTENSION * 1e6))
        interval = self._manager.watchdog_interval
        # A third of the interval, and one call early: the next one would come too late.
        if interval is not None and now - self._last_watchdog >= interval / 3 - ANNOUNCE_INTERVAL:
            self._last_watchdog = now
            self._manager.notify(WATCHDOG=1)

    def _take_status(self, state: DaemonState) -> str:
        self._status = _status_line(state)
        return self._status


def _status_line(state: DaemonState) -> str:
    """As `systemctl status` shows it."""
    if state.phase == "serving":
        return "serving" if not state.num_restarts else f"serving, after {state.num_restarts} restarts"
    return f"{state.phase}: {state.text}" if state.text else state.phase
