"""Picks the executor. Modules are imported only when chosen, so that a core with worker processes never loads torch."""

import importlib

from engined.executor.interface import Executor
from engined.process.progress import ProgressReporter
from engined.protocol.boot import EngineSettings

_EXECUTORS = {
    "uniproc": ("engined.executor.uniproc", "UniProcExecutor"),
    "multiproc": ("engined.executor.multiproc", "MultiProcExecutor"),
}


def create_executor(settings: EngineSettings, report_progress: ProgressReporter, traces_fd: int) -> Executor:
    """One rank runs in this process; several get a process each, and write their stacks to `traces_fd`."""
    kind = "uniproc" if settings.config.parallel.tensor_parallel_size == 1 else "multiproc"
    module, name = _EXECUTORS[kind]
    executor: Executor = getattr(importlib.import_module(module), name)(settings, report_progress, traces_fd)
    return executor
