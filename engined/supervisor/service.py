"""One child that the supervisor keeps alive: what it is, and how it is doing. Runs in the main process."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engined.process.heartbeat import Phase
from engined.process.launch import ChildProcess, ChildSpec
from engined.supervisor.restart_policy import RestartPolicy

PROGRESS_LINE_INTERVAL = 10.0
"""Seconds between two lines of the log about one phase of a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """What is to be kept alive, and how."""

    name: str
    make: Callable[[], ChildSpec]
    """The child, for each of its starts."""
    policy: RestartPolicy | None = None
    """None: its death ends the daemon."""
    follows: str | None = None
    """The service that this one needs: when that one dies, this one is not ready until it says so again."""
    budgets: Mapping[Phase, float] = field(default_factory=dict)
    """Seconds without a sign of life after which it hangs, by what it was doing; a phase that is not there has none."""


class Service:
    """The state of one service. `child` is None while it waits for its restart, and after its end."""

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self.child: ChildProcess | None = None
        self.facts: dict[str, Any] | None = None
        """What it reported when it was ready; None while it is not."""
        self.was_ready = False
        """Whether it ever was: before that, a failure is one of the configuration, and ends the daemon."""
        self.progress = ""
        """What it does, and how far it is, while it starts."""
        self._phase = ""
        self._last_progress_line = 0.0
        self.restart_time: float | None = None
        """Monotonic seconds at which it is started again."""
        self.num_restarts = 0

    @property
    def name(self) -> str:
        """As in titles and logs."""
        return self.spec.name

    def note_ready(self, facts: dict[str, Any]) -> None:
        """It serves."""
        self.facts = facts
        self.was_ready = True

    def note_progress(self, phase: str, detail: str) -> bool:
        """It moves on. Whether this is worth a line of the log: a new phase is, and a long one now and then."""
        is_new, self._phase = phase != self._phase, phase
        self.progress = f"{phase}: {detail}" if detail else phase
        now = time.monotonic()
        if not is_new and now - self._last_progress_line < PROGRESS_LINE_INTERVAL:
            return False
        self._last_progress_line = now
        return True

    def note_end(self) -> None:
        """Its child is gone."""
        self.child = None
        self.facts = None
        self.progress = self._phase = ""

    def silence(self) -> float | None:
        """Seconds over its budget since its last sign of life; None if it is well, or is not running."""
        if self.child is None:
            return None
        beat = self.child.heartbeat.read()
        budget = self.spec.budgets.get(beat.phase)
        if budget is None:
            return None
        age = time.monotonic() - beat.time
        return age if age > budget else None
