"""`engined serve`, from a loaded configuration to the exit code. Main process; called by the command line."""

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import setproctitle

from engined import __version__, faults, log
from engined.catalogue.entries import CATALOGUE
from engined.catalogue.resolve import resolve_model
from engined.checkpoint.load import load_model_info
from engined.checkpoint.model_info import ModelInfo
from engined.config.access_checks import check_exposure
from engined.config.checks import check_against_model, check_config
from engined.config.directories import data_directory
from engined.config.dtype import resolve_dtype
from engined.config.journal import writes_to_journal
from engined.config.memory_plan import MemoryPlan, plan_memory
from engined.config.model_runner import resolve_runner
from engined.config.resources import allowed_cpus, available_memory, own_cpus
from engined.config.schema import Config
from engined.config.units import format_bytes
from engined.ipc.paths import RuntimeDirectory
from engined.process.board import Board, DaemonState, shorten
from engined.process.progress import ProgressReporter, report_nothing
from engined.process.signals import SignalInbox
from engined.supervisor.announcer import Announcer
from engined.supervisor.children import CORE, Deployment, core_service, frontend_service
from engined.supervisor.listeners import Listeners
from engined.supervisor.sdnotify import ServiceManager, inherited_sockets
from engined.supervisor.supervisor import WATCHED_SIGNALS, Facts, Supervisor
from engined.trace.collect import collected_trace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """A configuration that has been checked against its model and this machine."""

    model_info: ModelInfo
    memory: MemoryPlan
    num_threads: int
    """Compute threads of one rank."""


def plan_serving(config: Config, report_progress: ProgressReporter = report_nothing) -> ServingPlan:
    """Find the model (downloading it if it must), read its header, check everything and plan the memory.

    The same for `engined serve` and `engined check-config`. Raises ConfigError or ModelError.
    """
    check_config(config)
    path = resolve_model(config.model.model, config.model.revision, report_progress=report_progress)
    model_info = load_model_info(str(path))
    if config.model.model.lower() in CATALOGUE:
        model_info = dataclasses.replace(model_info, name=config.model.model.lower())
    model_info = resolve_runner(model_info, config.model.runner)
    check_against_model(config, model_info)
    memory = plan_memory(config, model_info, resolve_dtype(config.model), available_memory())
    num_threads = config.parallel.num_threads or max(1, allowed_cpus() // config.parallel.tensor_parallel_size)
    if config.parallel.bind_threads:
        own_cpus(0, config.parallel.tensor_parallel_size, num_threads)
    return ServingPlan(model_info=model_info, memory=memory, num_threads=num_threads)


def run_server(config: Config, show_life: Callable[[], None] = lambda: None) -> int:
    """Serve until a signal or a failure; returns the exit code.

    `show_life` is called every second while all is well, a download included. Raises an EnginedError for what goes
    wrong before the children start; a later failure is logged, as the last line.
    """
    manager, inherited = ServiceManager(os.environ), inherited_sockets(os.environ)
    setproctitle.setproctitle("engined: supervisor")
    server = config.server
    log.setup("supervisor", server.log_level, server.log_format, is_journal=writes_to_journal(os.environ))
    faults.arm(os.environ, "supervisor")
    logger.info("engined %s, model %s", __version__, config.model.model)
    with contextlib.closing(Board()) as board:
        announcer = Announcer(board, manager)

        def announce(state: DaemonState) -> None:
            show_life()
            announcer.announce(state)

        return _plan_and_serve(config, inherited, board, announce)


def _plan_and_serve(
    config: Config,
    inherited: Sequence[tuple[str, socket.socket]],
    board: Board,
    announce: Callable[[DaemonState], None],
) -> int:
    started = time.monotonic()

    def report_progress(phase: str, detail: str = "") -> None:
        text = f"{phase}: {detail}" if detail else phase
        announce(DaemonState(phase="starting", text=shorten(text), start_time=started))

    # Until the loop runs, SIGTERM unwinds like Ctrl-C: a download is cut short and leaves nothing behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        plan = plan_serving(config, report_progress)
    except KeyboardInterrupt:
        logger.info("stopped before the model was loaded")
        return 0
    _log_plan(config, plan)
    with (
        collected_trace(config.server.trace),
        SignalInbox(*WATCHED_SIGNALS) as signals,
        Listeners(config.server, inherited) as listeners,
        RuntimeDirectory() as directory,
    ):
        if listeners.tcp is not None:
            check_exposure(config.server, [listeners.tcp.getsockname()[0]])
        deployment = Deployment(
            config=config,
            model_info=plan.model_info,
            plan=plan.memory,
            num_threads=plan.num_threads,
            engine_socket=directory.socket_path("engine-0"),
        )
        with Supervisor(signals, config.server.shutdown_timeout, announce, _data_path(config) / "crash") as supervisor:
            return _serve(deployment, listeners, supervisor, board, started)


def _serve(deployment: Deployment, listeners: Listeners, supervisor: Supervisor, board: Board, started: float) -> int:
    fds = listeners.fds | {"board": board.fd}
    supervisor.start([[frontend_service(deployment, fds)], [core_service(deployment)]])
    facts = supervisor.wait_until_ready()
    if facts is not None:
        logger.info("%s", _ready_line(deployment, listeners, facts, time.monotonic() - started))
        supervisor.wait_for_stop()
        # While we hold the sockets too, the kernel would go on queueing connections that nobody will accept.
        listeners.close()
    return supervisor.stop()


def _data_path(config: Config) -> Path:
    data_dir = config.server.data_dir
    return data_directory(os.environ) if data_dir is None else Path(data_dir)


def _log_plan(config: Config, plan: ServingPlan) -> None:
    memory, info = plan.memory, plan.model_info
    kv_cache = (
        f"KV cache {format_bytes(memory.kv_cache)} in {memory.num_kv_blocks} blocks of {config.cache.block_size} tokens"
        if info.encoder is None
        else "no KV cache"
    )
    logger.info(
        "%s: weights %s, %s, context %d", info.name, format_bytes(memory.weights), kv_cache, memory.max_model_len
    )
    if config.model.max_model_len is None and memory.max_model_len < info.default_max_len:
        limit, flag = (
            ("the KV cache holds", "--kv-cache-memory")
            if info.encoder is None
            else ("one step computes", "--max-num-batched-tokens")
        )
        logger.warning(
            "context lowered from %d to %d tokens, which is what %s; %s gives it more",
            info.default_max_len,
            memory.max_model_len,
            limit,
            flag,
        )


def _ready_line(deployment: Deployment, listeners: Listeners, facts: Facts, seconds: float) -> str:
    num_kv_blocks = facts[CORE].get("num_kv_blocks", deployment.plan.num_kv_blocks)
    size = "no KV cache" if deployment.model_info.encoder is not None else f"{num_kv_blocks} KV blocks"
    return (
        f"ready after {seconds:.1f} s: {deployment.model_info.name} ({deployment.plan.dtype}) on "
        f"{' and '.join(listeners.addresses)}, {deployment.num_threads} threads, {size}"
    )
