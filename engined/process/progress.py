"""How far a process has come while it starts. Every report is a sign of life too, so a start that moves on, however
slowly, is never taken for one that hangs. Made in children, whose parent hears of it through `Child.report_progress`,
and by a supervisor that downloads.
"""

import threading
import time
from typing import Protocol

REPORT_INTERVAL = 0.5
"""Seconds between two reports of one phase."""
_MEGABYTE = 1e6


class ProgressReporter(Protocol):
    """Takes a report to whoever waits."""

    def __call__(self, phase: str, detail: str = "") -> None:
        """`phase` is what is being done, for example "loading weights"; `detail` how far it is."""


def report_nothing(phase: str, detail: str = "") -> None:
    """A reporter for those whom nobody waits for."""


class PhaseProgress:
    """One phase of many small steps: most of them are too short to report. Not for several threads."""

    def __init__(self, report: ProgressReporter, phase: str, detail: str = "") -> None:
        """Begins the phase, with the first report."""
        self._report = report
        self._phase = phase
        self._last_report = time.monotonic()
        report(phase, detail)

    def note(self, detail: str) -> None:
        """A step is done. It is reported if the last report was not a moment ago."""
        now = time.monotonic()
        if now - self._last_report >= REPORT_INTERVAL:
            self._last_report = now
            self._report(self._phase, detail)


class LoadProgress:
    """Bytes and tensors that were read, of those that are wanted. Any thread may count."""

    def __init__(self, report: ProgressReporter, num_tensors: int, num_bytes: int) -> None:
        self._lock = threading.Lock()
        self._num_tensors, self._num_bytes = num_tensors, num_bytes
        self._num_tensors_read = self._num_bytes_read = 0
        self._phase = PhaseProgress(report, "loading weights", self._describe())

    def add_bytes(self, count: int) -> None:
        """A part of a tensor is there; it took `count` bytes of the file."""
        with self._lock:
            self._num_bytes_read += count
            self._phase.note(self._describe())

    def add_tensor(self) -> None:
        """One tensor is complete."""
        with self._lock:
            self._num_tensors_read += 1
            self._phase.note(self._describe())

    def _describe(self) -> str:
        read, total = self._num_bytes_read / _MEGABYTE, self._num_bytes / _MEGABYTE
        return f"{read:.0f} of {total:.0f} MB, {self._num_tensors_read} of {self._num_tensors} tensors"
