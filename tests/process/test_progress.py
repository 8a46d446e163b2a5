"""How far a start has come: what is said, how often, and that nobody who does not listen holds it up."""

import os
import time

import pytest

from engined.process.progress import REPORT_INTERVAL, LoadProgress, PhaseProgress
from engined.process.status import ChildStatus, StatusReader, StatusWriter


class Reports:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, phase: str, detail: str = "") -> None:
        self.seen.append((phase, detail))


def test_a_phase_is_reported_when_it_begins_and_then_now_and_then() -> None:
    reports = Reports()
    progress = PhaseProgress(reports, "packing weights")
    deadline = time.monotonic() + 2.2 * REPORT_INTERVAL
    num_steps = 0
    while time.monotonic() < deadline:
        num_steps += 1
        progress.note(f"step {num_steps}")
    assert reports.seen[0] == ("packing weights", "") and len(reports.seen) == 3
    assert num_steps > 1000


def test_bytes_and_tensors() -> None:
    reports = Reports()
    progress = LoadProgress(reports, num_tensors=2, num_bytes=270_400_000)
    time.sleep(REPORT_INTERVAL)
    progress.add_bytes(45_000_000)
    progress.add_tensor()
    time.sleep(REPORT_INTERVAL)
    progress.add_bytes(1_000_000)
    assert reports.seen == [
        ("loading weights", "0 of 270 MB, 0 of 2 tensors"),
        ("loading weights", "45 of 270 MB, 0 of 2 tensors"),
        ("loading weights", "46 of 270 MB, 1 of 2 tensors"),
    ]


def test_a_parent_that_does_not_read_loses_progress_and_keeps_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engined.process.status._PATIENCE", 0.2)
    read_end, write_end = os.pipe()
    writer, reader = StatusWriter(write_end), StatusReader(read_end)
    started = time.monotonic()
    for number in range(5000):
        writer.send(ChildStatus(kind="progress", text="loading weights", detail=str(number)))
    assert time.monotonic() - started < 2
    writer.send(ChildStatus(kind="failed", text="lost"))  # nobody reads: given up after a while
    before = reader.read()
    assert before and {report.kind for report in before} == {"progress"}
    assert [int(report.detail) for report in before] == list(range(len(before)))
    writer.send(ChildStatus(kind="failed", text="out of memory"))
    assert [report.text for report in reader.read()] == ["out of memory"]
    reader.close()
    os.close(write_end)
