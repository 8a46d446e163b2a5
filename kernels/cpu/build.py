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

import torch

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "source"
# Contraction to multiply-add is spelled out, because equal results on all paths rest upon it.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-fPIC", "-shared")
NATIVE = ("-march=native",)
_TIMEOUT_SECONDS = 120.0


def find_compiler() -> str | None:
    """Path of GCC's C++ compiler, the only one that was tried, or None if the machine has none."""
    return shutil.which("g++")


def build(compiler: str, cache: Path, machine_flags: Sequence[str] = NATIVE) -> Path:
    """The shared library, built if `cache` does not hold it yet. Several processes may ask at once: one builds.

    Raises OSError if the cache cannot be written, and subprocess.SubprocessError if the compiler fails or hangs.
    """
    sources = sorted(SOURCE.glob("*.cpp"))
    command = [compiler, *FLAGS, *machine_flags, *map(str, sources), *_openmp_runtime()]
    target = cache / f"cpu-{_fingerprint(compiler, command)}.so"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "cpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            started = time.monotonic()
            _compile(command, target)
            logger.info(
                "built the CPU kernels in %.1f s, once for this machine: %s", time.monotonic() - started, target
            )
    return target


def _compile(command: list[str], target: Path) -> None:
    """Compile beside the target and rename: whoever sees the target sees all of it."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        output = Path(folder) / target.name
        subprocess.run(
            [*command, "-o", str(output)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
        os.replace(output, target)


def _openmp_runtime() -> list[str]:
    """The OpenMP library that torch brought along, if its name is its own: two would mean two pools of threads.

    Under the system's name the loader finds it by itself, since torch has loaded it already.
    """
    bundled = (Path(torch.__file__).parent / "lib").glob("libgomp-*.so*")
    return [str(path) for path in bundled][:1]


def _fingerprint(compiler: str, command: list[str]) -> str:
    """Changes with the sources, the compiler, its flags, and the instructions that this CPU has."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=_TIMEOUT_SECONDS)
    flags = [argument for argument in command if argument.startswith("-")]
    digest.update(version.stdout + repr((flags, _cpu_description())).encode())
    return digest.hexdigest()[:16]


def _cpu_description() -> list[str]:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = ("model name", "cpu family", "model", "flags", "Features")
    return [platform.machine(), *sorted({line for line in lines if line.split("\t")[0].strip() in names})]
