"""Picks the executor. Modules are imported only when chosen, so that a core with worker processes never loads torch."""

import importlib

from engined.executor.interface import Executor
from engined.process.collector import paused_collector
from engined.process.progress import ProgressReporter
from engined.protocol.boot import EngineSettings
from engined.trace.tracer import Tracer

_EXECUTORS = {
    "uniproc": ("engined.executor.uniproc", "UniProcExecutor"),
    "multiproc": ("engined.executor.multiproc", "MultiProcExecutor"),
}


def create_executor(
    settings: EngineSettings, report_progress: ProgressReporter, traces_fd: int, tracer: Tracer
) -> Executor:
    """One rank runs in this process; several get a process each, and write their stacks to `traces_fd`."""
    kind = "uniproc" if settings.config.parallel.tensor_parallel_size == 1 else "multiproc"
    module, name = _EXECUTORS[kind]
    with paused_collector():
        executor_class = getattr(importlib.import_module(module), name)
    executor: Executor = executor_class(settings, report_progress, traces_fd, tracer)
    return executor
