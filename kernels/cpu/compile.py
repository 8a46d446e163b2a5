"""Runs the compiler: one process a source file, as many at once as there are CPUs, then one that links. Rank
processes, at the first start on a machine."""

import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from engined.config.resources import allowed_cpus

_POLL_SECONDS = 0.5


def compile_library(
    compiler: Sequence[str],
    sources: Sequence[Path],
    libraries: Sequence[str],
    output: Path,
    *,
    timeout: float,
    report: Callable[[float], None],
) -> None:
    """Make the shared library `output`; object files are left beside it. `compiler` is the command with its flags.

    `report` is told every half second how many have passed. Raises subprocess.SubprocessError if the compiler fails, or
    takes longer than `timeout` seconds.
    """
    started = time.monotonic()

    def run(command: list[str]) -> None:
        left = max(0.0, started + timeout - time.monotonic())
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=left, check=True)

    def run_all(commands: list[list[str]]) -> None:
        with ThreadPoolExecutor(allowed_cpus(), thread_name_prefix="compile") as pool:
            runs = [pool.submit(run, command) for command in commands]
            try:
                while (state := wait(runs, _POLL_SECONDS, FIRST_EXCEPTION)).not_done:
                    for finished in state.done:
                        finished.result()
                    report(time.monotonic() - started)
            finally:
                pool.shutdown(cancel_futures=True)
            for finished in runs:
                finished.result()

    objects = [output.with_name(f"{source.stem}.o") for source in sources]
    run_all([[*compiler, "-c", str(source), "-o", str(made)] for source, made in zip(sources, objects, strict=True)])
    run_all([[*compiler, "-shared", *map(str, objects), *libraries, "-o", str(output)]])
