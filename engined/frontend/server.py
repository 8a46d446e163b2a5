"""Runs one frontend on the listening sockets that it was given, until it is told to stop. Frontend process.

Stopping: no new connections, new requests on open ones get 503, running ones may finish until the limit; then they end
with an error, and the process is done. A second signal cuts the wait short.
"""

import asyncio
import functools
import gc
import logging
import signal
import socket
from collections.abc import Callable, Sequence

from aiohttp import web

from engined.errors import EnginedError, RequestError
from engined.frontend.acceptor import Acceptor
from engined.frontend.app import Frontend
from engined.frontend.connection_limits import ConnectionPlace
from engined.frontend.connection_timers import DEFAULT_TIMES, ConnectionTimes
from engined.frontend.http_connection import HttpConnection
from engined.frontend.loop_lag import LoopLag
from engined.process.heartbeat import Phase

logger = logging.getLogger(__name__)

LINGERING_SECONDS = 2.0
CLOSE_SECONDS = 1.0
"""For handlers to write their last error, after everything has been ended."""
MAX_HEADERS = 100
SAMPLES_PER_BEAT = 10
"""Of the loop's lag, so that a sign of life comes each second."""


async def run_frontend(
    frontend: Frontend,
    sockets: Sequence[socket.socket],
    shutdown_timeout: float,
    report_ready: Callable[[], None],
    beat: Callable[[Phase], None],
    times: ConnectionTimes = DEFAULT_TIMES,
) -> None:
    """Serve until SIGTERM, then drain. `report_ready` is called whenever an engine has been found to work, `beat` each
    second.

    Raises EnginedError if a task of the frontend's own ends, which none of them should.
    """
    stop_signals = _StopSignals()
    runner = web.AppRunner(
        frontend.app, handler_cancellation=True, shutdown_timeout=CLOSE_SECONDS, handle_signals=False
    )
    await runner.setup()
    assert runner.server is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, frontend.access.reload)
    make_connection = functools.partial(_make_connection, runner.server, times)
    tls = frontend.access.tls.context
    acceptors = [
        Acceptor(sock, make_connection, frontend.pressure.connections, None if sock.family == socket.AF_UNIX else tls)
        for sock in sockets
    ]
    engine_task = asyncio.create_task(frontend.engine.run(report_ready), name="engine outputs")
    frontend.batches.open()
    other_tasks = [
        asyncio.create_task(_keep_beating(beat, frontend.pressure.loop_lag), name="signs of life"),
        asyncio.create_task(frontend.batches.run(), name="batches"),
        asyncio.create_task(frontend.rates.run(), name="rates"),
    ]
    # What exists now lives as long as the process; the collector need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        await _until_stopped(stop_signals, (engine_task, *other_tasks))
        await _drain(frontend, acceptors, stop_signals, shutdown_timeout)
    finally:
        # A drain leaves none; whoever fails must not leave anybody waiting.
        frontend.engine.fail_all(
            RequestError("the server has failed", status=500, type="server_error", code="internal_error")
        )
        for acceptor in acceptors:
            acceptor.close()
        for task in other_tasks:
            task.cancel()
        await frontend.batches.close()
        await runner.cleanup()
        engine_task.cancel()
        frontend.context.close()


async def _keep_beating(beat: Callable[[Phase], None], loop_lag: LoopLag) -> None:
    """Show that the event loop turns, and see how smoothly."""
    while True:
        beat(Phase.SERVING)
        for _ in range(SAMPLES_PER_BEAT):
            await loop_lag.sample()


def _make_connection(server: web.Server, times: ConnectionTimes, place: ConnectionPlace) -> HttpConnection:
    """What a new connection is. aiohttp's own sites would not let us say that."""
    return HttpConnection(
        server,
        times,
        place,
        loop=asyncio.get_running_loop(),
        auto_decompress=False,
        max_headers=MAX_HEADERS,
        access_log=None,
        lingering_time=LINGERING_SECONDS,
    )


async def _until_stopped(stop_signals: "_StopSignals", tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raises EnginedError if one of `tasks` ends first, without which this process would only look alive."""
    stop = asyncio.create_task(stop_signals.first.wait())
    done, _ = await asyncio.wait((stop, *tasks), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    for task in tasks:
        if task in done:
            raise EnginedError(f"the task {task.get_name()!r} of the frontend ended") from task.exception()


async def _drain(
    frontend: Frontend, acceptors: Sequence[Acceptor], stop_signals: "_StopSignals", shutdown_timeout: float
) -> None:
    frontend.lifecycle.start_draining()
    frontend.batches.stop()
    for acceptor in acceptors:
        acceptor.close()
    logger.info("stopping: %d sequences are running", frontend.engine.num_running)
    deadline = asyncio.get_running_loop().time() + shutdown_timeout
    while frontend.engine.num_running and not stop_signals.second.is_set():
        remaining = deadline - asyncio.get_running_loop().time()
        if remaining <= 0:
            break
        await stop_signals.wait_for_second(min(remaining, 0.05))
    if frontend.engine.num_running:
        logger.warning("ending %d sequences that are still running", frontend.engine.num_running)
        frontend.engine.abort_all(
            RequestError("the server is shutting down", status=503, type="server_error", code="shutting_down")
        )


class _StopSignals:
    """SIGTERM: the first asks to stop, the second to stop now."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._note)

    async def wait_for_second(self, seconds: float) -> None:
        """Wait for the second signal, at most so long."""
        try:
            await asyncio.wait_for(self.second.wait(), seconds)
        except TimeoutError:
            return

    def _note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
