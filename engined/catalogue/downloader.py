"""Runs a program that downloads, and shows that it still does. Main process, before any child is started."""

import contextlib
import subprocess
import time
from collections.abc import Sequence
from typing import IO

from engined.process.progress import REPORT_INTERVAL, ProgressReporter

PHASE = "downloading the model"


def run_downloader(
    command: Sequence[str], report_progress: ProgressReporter, stdout: IO[str] | int, stderr: IO[str] | int | None
) -> "subprocess.CompletedProcess[str]":
    """Run `command` to its end. It has no limit: pip and huggingface_hub give up by themselves when nothing comes for
    some ten seconds, so that one which runs moves on."""
    started = time.monotonic()
    report_progress(PHASE)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, _ = process.communicate(timeout=REPORT_INTERVAL)
                    return subprocess.CompletedProcess(command, process.returncode, output)
                report_progress(PHASE, f"for {time.monotonic() - started:.0f} s")
        finally:
            process.kill()
