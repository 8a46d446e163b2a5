"""The executor of several ranks: one worker process each, with a Unix-socket link to it. Never imports torch.

Every rank gets every plan; only rank 0 answers. A monitor thread watches all ranks: when one dies, the links are shut
down, so that nobody waits for an answer which the others, stuck in a collective, can no longer give.
"""

import contextlib
import logging
import select
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from engined.errors import EngineDeadError, StartupError
from engined.executor.interface import Executor
from engined.ipc.channel import BlockingChannel
from engined.ipc.frame import Buffer, MessageType
from engined.process.environment import compute_environment
from engined.process.launch import ChildProcess, ChildSpec, describe_exit
from engined.process.progress import ProgressReporter
from engined.process.status import ChildStatus
from engined.protocol.boot import EngineSettings, WorkerBoot
from engined.protocol.codec import decode, encode, to_builtins
from engined.protocol.plan import GrammarMasks, ModelRunnerOutput, SchedulerOutput
from engined.trace.tracer import Tracer

logger = logging.getLogger(__name__)

_EMPTY = b"{}"
_LOOK_INTERVAL = 1.0
"""Seconds between two looks at the ranks while they load."""
_LONG_SILENCE = 10.0
"""Seconds after which the log names a rank. What ends the group is the limit of the supervisor."""


@dataclass(slots=True)
class _Rank:
    """One worker process and the link to it."""

    process: ChildProcess
    channel: BlockingChannel


class MultiProcExecutor(Executor):
    """Owns the worker processes, their links, and the thread that waits for answers."""

    def __init__(
        self, settings: EngineSettings, report_progress: ProgressReporter, traces_fd: int, tracer: Tracer
    ) -> None:
        self._track = tracer.track("links to the ranks")
        self._traces_fd = traces_fd
        self._settings = settings
        self._report_progress = report_progress
        self._size = settings.config.parallel.tensor_parallel_size
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rank-0-answers")
        self._rendezvous = tempfile.TemporaryDirectory(prefix="engined-ranks-")
        self._ranks: list[_Rank] = []
        self._progress = ("starting the ranks", "")
        self._stopping = threading.Event()
        self._cause = ""
        self._on_death: Callable[[str], None] | None = None

    def initialize(self) -> None:
        self._ranks = [self._start_rank(rank) for rank in range(self._size)]
        self._wait_until_ready(self._settings.config.parallel.startup_timeout)
        threading.Thread(target=self._monitor, name="rank monitor", daemon=True).start()

    def _start_rank(self, rank: int) -> _Rank:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        boot = WorkerBoot(settings=self._settings, rank=rank, rendezvous=str(Path(self._rendezvous.name) / "store"))
        spec = ChildSpec(
            name=f"Worker_TP{rank}",
            entry="engined.worker.main",
            data=to_builtins(boot),
            log_level=self._settings.config.server.log_level,
            log_format=self._settings.config.server.log_format,
            fds={"link": theirs.fileno()},
            traces_fd=self._traces_fd,
            # All ranks live on this machine: their collectives stay on the loopback interface.
            environment=compute_environment(self._settings.num_threads)
            | {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"},
        )
        with theirs:
            process = ChildProcess.start(spec)
        return _Rank(process, BlockingChannel(ours))

    def _wait_until_ready(self, timeout: float) -> None:
        """Raises StartupError with the cause that a rank reported, or with the names of those that are late."""
        waiting = {rank.process.name: rank for rank in self._ranks}
        last_sign = time.monotonic()
        for events in self._process_events(_LOOK_INTERVAL):
            for rank in events:
                for report in rank.process.read_status():
                    self._note_report(rank, report)
                    if report.kind == "ready":
                        waiting.pop(rank.process.name, None)
                if (code := rank.process.poll()) is not None:
                    self._fail_start(rank, code)
            if not waiting:
                return
            newest = max(rank.process.heartbeat.read().time for rank in self._ranks)
            if newest > last_sign:
                # It may only import, and then says nothing.
                last_sign = newest
                self._report_progress(*self._progress)
            elif time.monotonic() - last_sign > timeout:
                names = ", ".join(waiting)
                raise StartupError(f"{names} not ready after {timeout:g} s without progress (--startup-timeout)")

    def _note_report(self, rank: _Rank, report: ChildStatus) -> None:
        """Pass on what rank 0 says; any other rank that moves on is a sign of life too."""
        if report.kind == "progress":
            if rank is self._ranks[0]:
                self._progress = (report.text, report.detail)
            self._report_progress(*self._progress)

    def _fail_start(self, rank: _Rank, code: int) -> None:
        failure = rank.process.failure
        if failure is not None:
            raise StartupError(failure.text, failure.exit_code)
        raise StartupError(describe_exit(rank.process.name, code) + " while it was starting")

    def _process_events(self, timeout: float | None) -> Iterator[list[_Rank]]:
        """Yield the ranks that reported something or ended; none of them when `timeout` seconds passed without."""
        poller = select.poll()
        by_fd = {}
        for rank in self._ranks:
            for fd in (rank.process.pidfd, rank.process.status.fd):
                poller.register(fd, select.POLLIN)
                by_fd[fd] = rank
        while True:
            events = poller.poll(None if timeout is None else timeout * 1000)
            yield list({id(by_fd[fd]): by_fd[fd] for fd, _ in events}.values())

    def _monitor(self) -> None:
        """Wait for the first rank that ends, and break every link then. A group that nobody watches has ended too."""
        try:
            cause = self._wait_for_death()
        except Exception as error:  # the outermost boundary of a thread
            logger.exception("the rank monitor died")
            cause = f"the thread that watches the ranks died: {error}"
        if self._stopping.is_set():
            return
        self._cause = cause
        for rank in self._ranks:
            rank.channel.shutdown()
        if self._on_death is not None:
            self._on_death(cause)

    def _wait_for_death(self) -> str:
        """The cause of the first end of a rank."""
        for events in self._process_events(None):
            for rank in events:
                rank.process.read_status()
                code = rank.process.poll()
                if code is not None:
                    reported = rank.process.failure
                    return reported.text if reported else describe_exit(rank.process.name, code)
        raise AssertionError("there is always another look")

    def watch(self, on_death: Callable[[str], None]) -> None:
        self._on_death = on_death
        if self._cause:
            on_death(self._cause)

    def execute_model(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        if plan.is_repeat:
            plan = replace(plan, num_scheduled_tokens={})  # the ranks have them
        return self._thread.submit(self._execute, encode(plan))

    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        if masks is None:
            return self._thread.submit(self._ask, MessageType.SAMPLE, _EMPTY)
        return self._thread.submit(self._ask, MessageType.SAMPLE, encode(masks.request_ids), (masks.rows,))

    def last_sign_of_life(self, rest_began: float) -> float:
        def heard(rank: _Rank) -> float:
            # A rank may end a step a little after rank 0 has answered for it.
            return max(rank.process.heartbeat.read().time, rest_began)

        rank = min(self._ranks, key=heard)
        silence = time.monotonic() - heard(rank)
        if silence > _LONG_SILENCE:
            logger.warning("%s, at rest, gave no sign of life for %.1f s", rank.process.name, silence)
        return heard(rank)

    def release_memory(self) -> Future[None]:
        return self._thread.submit(self._broadcast, MessageType.RELEASE, _EMPTY)

    def _broadcast(self, type: MessageType, payload: bytes, blobs: Sequence[Buffer] = ()) -> None:
        """Send one frame to every rank. The blobs go to rank 0 only, which samples for all."""
        try:
            with self._track.span("broadcast"):
                for number, rank in enumerate(self._ranks):
                    rank.channel.send(type, payload, blobs if number == 0 else ())
        except OSError as error:
            raise self._dead() from error

    def _execute(self, payload: bytes) -> ModelRunnerOutput | None:
        if self._settings.model_info.runner == "pooling":
            return self._ask(MessageType.EXECUTE, payload)
        self._broadcast(MessageType.EXECUTE, payload)
        return None

    def _ask(self, type: MessageType, payload: bytes, blobs: Sequence[Buffer] = ()) -> ModelRunnerOutput:
        """Send one frame to every rank; the answer of rank 0."""
        self._broadcast(type, payload, blobs)
        try:
            with self._track.span("wait for rank 0"):
                frame = self._ranks[0].channel.receive()
        except OSError as error:
            raise self._dead() from error
        if frame is None:
            raise self._dead()
        return decode(frame.payload, ModelRunnerOutput)

    def _dead(self) -> EngineDeadError:
        """The error of a broken link, with the cause that the monitor finds within a moment."""
        for _ in range(20):
            if self._cause:
                break
            self._stopping.wait(0.05)
        return EngineDeadError(self._cause or "the link to a worker rank broke")

    def shutdown(self) -> None:
        self._stopping.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        for rank in self._ranks:
            rank.process.signal(signal.SIGTERM)
        for rank in self._ranks:
            rank.process.stop(timeout=2.0)
            rank.channel.close()
        with contextlib.suppress(OSError):
            self._rendezvous.cleanup()
