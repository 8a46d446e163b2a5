"""The executor of one rank: the worker lives in the core's process, on a thread of its own.

torch releases the GIL inside its operators, so the core's loop takes messages while a forward runs. All model work
stays on that one thread, because OpenMP keeps a pool of compute threads for each thread that calls it.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from engined.executor.interface import Executor
from engined.process.progress import ProgressReporter
from engined.protocol.boot import EngineSettings
from engined.protocol.plan import GrammarMasks, ModelRunnerOutput, SchedulerOutput
from engined.trace.tracer import NO_TRACER, Tracer
from engined.worker.worker import Worker


class UniProcExecutor(Executor):
    """Owns the worker and its thread."""

    def __init__(
        self,
        settings: EngineSettings,
        report_progress: ProgressReporter,
        traces_fd: int = -1,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """The stacks of this process, where the worker lives, need no `traces_fd`."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker")
        self._worker = Worker(settings, rank=0, report_progress=report_progress, track=tracer.track("worker"))

    def initialize(self) -> None:
        self._thread.submit(self._worker.initialize).result()

    def watch(self, on_death: Callable[[str], None]) -> None:
        """The model runs in this very process."""

    def execute_model(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        return self._thread.submit(self._worker.execute_model, plan)

    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        return self._thread.submit(self._worker.sample_tokens, masks)

    def last_sign_of_life(self, rest_began: float) -> float:
        return time.monotonic()

    def release_memory(self) -> Future[None]:
        return self._thread.submit(self._worker.release_memory)

    def shutdown(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
