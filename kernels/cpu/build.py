"""Builds the C++ kernels once for this machine, with its own compiler, into a cache. Rank processes, at start.

They are compiled without torch's headers, to plain functions over pointers: that takes a few seconds, needs neither
ninja nor Python's headers, and the result does not depend on the version of torch.
"""

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import torch

from engined.kernels.cpu.compile import compile_library
from engined.kernels.cpu.tiles import NATIVE
from engined.process.progress import ProgressReporter, report_nothing

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "source"
# Contraction to multiply-add is spelled out, because equal results on all paths rest upon it.
FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-fPIC")
_TIMEOUT_SECONDS = 120.0
_VERSION_TIMEOUT_SECONDS = 30.0
_LOCK_TIMEOUT_SECONDS = _TIMEOUT_SECONDS + 10.0
_POLL_SECONDS = 0.5
_PHASE = "preparing the CPU kernels"


def find_compiler() -> str | None:
    """Path of GCC's C++ compiler, the only one that was tried, or None if the machine has none."""
    return shutil.which("g++")


def build(
    compiler: str,
    cache: Path,
    machine_flags: Sequence[str] = NATIVE,
    report_progress: ProgressReporter = report_nothing,
) -> Path:
    """The shared library, built if `cache` does not hold it yet. Several processes may ask at once: one builds.

    Raises OSError if the cache cannot be written, and subprocess.SubprocessError if the compiler fails or hangs.
    """
    report_progress(_PHASE)
    sources = sorted(SOURCE.glob("*.cpp"))
    command = [compiler, *FLAGS, *machine_flags]
    target = cache / f"cpu-{_fingerprint(command)}.so"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "cpu.lock").open("w") as lock:
        _acquire(lock, report_progress)
        if not target.exists():
            started = time.monotonic()
            _compile(command, sources, target, report_progress)
            logger.info(
                "built the CPU kernels in %.1f s, once for this machine: %s", time.monotonic() - started, target
            )
    return target


def _acquire(lock: IO[str], report_progress: ProgressReporter) -> None:
    """Take the lock. Whoever holds it has a limit of its own; TimeoutError if it does not end by then."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has held {lock.name} for too long") from None
        report_progress(_PHASE, "another process compiles them")
        time.sleep(_POLL_SECONDS)


def _compile(compiler: Sequence[str], sources: Sequence[Path], target: Path, report_progress: ProgressReporter) -> None:
    """Compile beside the target and rename: whoever sees the target sees all of it."""

    def report(seconds: float) -> None:
        report_progress(_PHASE, f"compiling for {seconds:.0f} s, once for this machine")

    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        output = Path(folder) / target.name
        compile_library(compiler, sources, _openmp_runtime(), output, timeout=_TIMEOUT_SECONDS, report=report)
        os.replace(output, target)


def _openmp_runtime() -> list[str]:
    """The OpenMP library that torch brought along, if its name is its own: two would mean two pools of threads.

    Under the system's name the loader finds it by itself, since torch has loaded it already.
    """
    bundled = (Path(torch.__file__).parent / "lib").glob("libgomp-*.so*")
    return [str(path) for path in bundled][:1]


def _fingerprint(command: list[str]) -> str:
    """Changes with the sources, the compiler, its flags, and the instructions that this CPU has."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.read_bytes())
    version = subprocess.run(
        [command[0], "--version"], capture_output=True, check=True, timeout=_VERSION_TIMEOUT_SECONDS
    ).stdout
    digest.update(version + repr((command[1:], _cpu_description())).encode())
    return digest.hexdigest()[:16]


def _cpu_description() -> list[str]:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = ("model name", "cpu family", "model", "flags", "Features")
    return [platform.machine(), *sorted({line for line in lines if line.split("\t")[0].strip() in names})]
