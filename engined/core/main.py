"""Entry of the EngineCore process: listen, load, greet the frontends, run the busy loop.

The socket listens before the model loads, so that a frontend can already connect and wait for READY. The main thread
runs the loop; two IO threads own the sockets. Started by the supervisor through engined.process.child.
"""

import gc
import logging
import os
import queue
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engined import __version__, faults
from engined.cache.kv_cache_manager import KVCacheManager
from engined.cache.sequence_cache import NoCache, SequenceCache
from engined.core.busy_loop import BusyLoop
from engined.core.clients import ClientTable
from engined.core.commands import ExecutorDied, InputQueue, OutputQueue, Send
from engined.core.engine_core import EngineCore
from engined.core.grammar_queue import GrammarQueue
from engined.core.input_thread import InputSources, InputThread
from engined.core.output_thread import run_output_thread
from engined.core.request_factory import RequestFactory
from engined.executor.factory import create_executor
from engined.executor.interface import Executor
from engined.grammar.matcher_factory import MatcherFactory
from engined.process.child import Child
from engined.process.signals import SignalInbox
from engined.protocol.boot import EngineCoreBoot, EngineSettings
from engined.protocol.engine import EngineFatal, EngineReady
from engined.scheduler.scheduler import Scheduler
from engined.trace.tracer import Tracer

logger = logging.getLogger(__name__)

# Frontends let nothing pass that takes them a second; a machine that is busy computing gets some more.
_GRAMMAR_DEADLINE_S = 10.0


def main(child: Child) -> int:
    """Be the engine core until SIGTERM, or until the executor fails."""
    boot = msgspec.convert(child.data, EngineCoreBoot)
    listener = _listen(boot.engine_socket)
    tracer = Tracer(boot.settings.config.server.trace, child.name)
    executor = create_executor(boot.settings, child.report_progress, child.traces_fd, tracer)
    try:
        executor.initialize()
        with SignalInbox(signal.SIGTERM) as signals:
            _serve(child, boot.settings, InputSources(listener, signals), executor, tracer)
    finally:
        executor.shutdown()
        tracer.close()
    return 0


def _serve(child: Child, settings: EngineSettings, sources: InputSources, executor: Executor, tracer: Tracer) -> None:
    """Run the IO threads and the busy loop of an engine whose model is loaded."""
    inputs: InputQueue = queue.SimpleQueue()
    outputs: OutputQueue = queue.SimpleQueue()
    clients = ClientTable()
    cache = _create_cache(settings)
    scheduler = Scheduler(settings.config.scheduler, cache, settings.max_model_len, time.monotonic)
    input_thread = InputThread(sources, clients, inputs, RequestFactory(settings, cache.hasher))
    ready = _describe(settings)
    _start_critical_thread(child, "input", lambda: input_thread.run(lambda index: outputs.put(Send(index, ready))))
    output_track = tracer.track("output")
    output_thread = _start_critical_thread(child, "output", lambda: run_output_thread(outputs, clients, output_track))
    # Everything that exists now lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    faults.point("handshake")
    child.report_ready(num_kv_blocks=ready.num_kv_blocks, max_model_len=ready.max_model_len, dtype=ready.dtype)
    grammars = GrammarQueue(MatcherFactory(settings.model_info, _GRAMMAR_DEADLINE_S), inputs)
    executor.watch(lambda cause: inputs.put(ExecutorDied(cause)))
    try:
        engine_core = EngineCore(
            scheduler, cache, executor, grammars, settings.model_info.runner, tracer.track("busy loop")
        )
        BusyLoop(engine_core, inputs, outputs, child.heartbeat.beat).run()
    except Exception as error:
        outputs.put(Send(None, EngineFatal(cause=str(error) or type(error).__name__)))
        raise
    finally:
        grammars.close()
        outputs.put(None)
        output_thread.join(timeout=1.0)


def _create_cache(settings: EngineSettings) -> SequenceCache:
    config = settings.config
    if settings.model_info.encoder is not None:
        return NoCache(config.scheduler.max_num_batched_tokens)
    return KVCacheManager(
        num_blocks=settings.num_kv_blocks,
        block_size=config.cache.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        hash_secret=secrets.token_bytes(32),
    )


def _describe(settings: EngineSettings) -> EngineReady:
    return EngineReady(
        version=__version__,
        pid=os.getpid(),
        dtype=settings.dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        num_kv_blocks=settings.num_kv_blocks,
        block_size=settings.config.cache.block_size,
        max_model_len=settings.max_model_len,
        quantization=settings.config.model.quantization,
    )


def _listen(path: str) -> socket.socket:
    """Listen in the daemon's private folder, where only a core that is gone can have left a socket."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    return listener


def _start_critical_thread(child: Child, name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a thread whose death ends the process: an engine that cannot hear or speak must not look alive."""

    def run_or_die() -> None:
        try:
            run()
        except BaseException as error:
            logger.exception("the %s thread died", name)
            child.report_failure(error)
            os._exit(70)

    thread = threading.Thread(target=run_or_die, name=name, daemon=True)
    thread.start()
    return thread
