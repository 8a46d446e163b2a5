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
from engined.frontend.app import Frontend
from engined.frontend.http_connection import HttpConnection
from engined.process.heartbeat import Phase

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75.0
"""Longer than load balancers keep an idle connection, so that it is they who close it."""
LINGERING_SECONDS = 2.0
CLOSE_SECONDS = 1.0
"""For handlers to write their last error, after everything has been ended."""
MAX_HEADERS = 100
BEAT_SECONDS = 1.0
"""Between two signs of life."""
BACKLOG = 128
"""Connections that wait to be accepted."""


async def run_frontend(
    frontend: Frontend,
    sockets: Sequence[socket.socket],
    shutdown_timeout: float,
    report_ready: Callable[[], None],
    beat: Callable[[Phase], None],
) -> None:
    """Serve until SIGTERM, then drain. `report_ready` is called whenever an engine has been found to work, `beat` each
    second.

    Raises EnginedError if the output task ends, which it never should.
    """
    stop_signals = _StopSignals()
    runner = web.AppRunner(
        frontend.app, handler_cancellation=True, shutdown_timeout=CLOSE_SECONDS, handle_signals=False
    )
    await runner.setup()
    assert runner.server is not None
    listeners = [await _listen(runner.server, listening_socket) for listening_socket in sockets]
    engine_task = asyncio.create_task(frontend.engine.run(report_ready), name="engine outputs")
    beat_task = asyncio.create_task(_keep_beating(beat), name="signs of life")
    frontend.batches.open()
    batch_task = asyncio.create_task(frontend.batches.run(), name="batches")
    # What exists now lives as long as the process; the collector need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        await _until_stopped(stop_signals, engine_task)
        await _drain(frontend, listeners, stop_signals, shutdown_timeout)
    finally:
        for listener in listeners:
            listener.close()
        batch_task.cancel()
        beat_task.cancel()
        await frontend.batches.close()
        await runner.cleanup()
        engine_task.cancel()
        frontend.context.close()


async def _keep_beating(beat: Callable[[Phase], None]) -> None:
    """Show that the event loop turns."""
    while True:
        beat(Phase.SERVING)
        await asyncio.sleep(BEAT_SECONDS)


async def _listen(server: web.Server, listening_socket: socket.socket) -> asyncio.Server:
    """Accept connections. aiohttp's own sites would not let us say what a connection is."""
    loop = asyncio.get_running_loop()
    make_connection = functools.partial(
        HttpConnection,
        server,
        loop=loop,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        auto_decompress=False,
        max_headers=MAX_HEADERS,
        access_log=None,  # type: ignore[arg-type]  # off, although its type does not say so
        lingering_time=LINGERING_SECONDS,
    )
    return await loop.create_server(make_connection, sock=listening_socket, backlog=BACKLOG)


async def _until_stopped(stop_signals: "_StopSignals", engine_task: asyncio.Task[None]) -> None:
    stop = asyncio.create_task(stop_signals.first.wait())
    done, _ = await asyncio.wait((stop, engine_task), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if engine_task in done:
        raise EnginedError("the output task of the frontend ended") from engine_task.exception()


async def _drain(
    frontend: Frontend, listeners: Sequence[asyncio.Server], stop_signals: "_StopSignals", shutdown_timeout: float
) -> None:
    frontend.lifecycle.start_draining()
    frontend.batches.stop()
    for listener in listeners:
        listener.close()
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
