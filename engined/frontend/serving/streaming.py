"""Answers a request as a stream of server-sent events. Frontend process; called by the routes.

The status line waits for the first output, so that whatever fails before it is a plain HTTP error; after it, an error
is an event. A stream that has nothing to say sends a comment now and then, so that no proxy takes it for dead.
A client that does not read holds up its own stream only; when it takes nothing for too long, its connection is aborted.
"""

import asyncio

from aiohttp import web

from engined.errors import EnginedError
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.off_loop import LARGE_BYTES
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.serving.generation import Generation, GenerationRun, run_generation

KEEP_ALIVE_SECONDS = 10.0
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


async def stream_generation(request: web.Request, engine: AsyncLLM, generation: Generation) -> web.StreamResponse:
    """Run `generation` and stream its outputs. Raises RequestError if it fails before the first output."""
    response = web.StreamResponse(headers=HEADERS)
    async with run_generation(engine, generation, final_only=False) as run:
        keep_alive = _KeepAlive(run)
        try:
            outputs = await run.next_outputs()
            await response.prepare(request)
            try:
                await _write_outputs(_EventWriter(request, response, run), generation, run, outputs, keep_alive)
            except EnginedError as error:
                run.note_error(error)
                response.force_close()
                await response.write(generation.formatter.error(error) + generation.formatter.terminator)
        finally:
            keep_alive.stop()
    return response


class _EventWriter:
    """The way to the client. A write ends when the kernel has taken all of it, so that one at most waits here."""

    def __init__(self, request: web.Request, response: web.StreamResponse, run: GenerationRun) -> None:
        self._request = request
        self._response = response
        self._collector = run.collector
        self._track = run.track

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError if the client goes away, or is disconnected because it does not read."""
        self._collector.is_held_up = True
        with self._track.span("write"):
            await self._response.write(data)
            if self._request.protocol.writing_paused:
                await self._request.writer.drain()
        self._collector.is_held_up = False


async def _write_outputs(
    writer: _EventWriter,
    generation: Generation,
    run: GenerationRun,
    outputs: list[ChoiceOutput],
    keep_alive: "_KeepAlive",
) -> None:
    """All that is ready goes out in one write; while that write waits for a slow client, deltas merge."""
    formatter, usage = generation.formatter, generation.usage
    begin = formatter.begin()
    while True:
        with run.track.span("format"):
            if run.collector.num_taken_bytes > LARGE_BYTES:
                data = begin + await asyncio.to_thread(_format, generation, outputs)
            else:
                data = begin + _format(generation, outputs)
        begin = b""
        if run.is_finished:
            await writer.write(data + formatter.end(usage) + formatter.terminator)
            return
        if data or not outputs:
            await writer.write(data or formatter.keep_alive)
            keep_alive.note_write()
        outputs = await run.next_outputs()


def _format(generation: Generation, outputs: list[ChoiceOutput]) -> bytes:
    return b"".join([generation.formatter.chunk(output, generation.usage) for output in outputs])


class _KeepAlive:
    """Wakes the stream after a silence. One timer for each silence, none for each token."""

    def __init__(self, run: GenerationRun) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._fire)

    def note_write(self) -> None:
        """The silence begins anew."""
        self._last_write = self._loop.time()

    def stop(self) -> None:
        """The stream is over."""
        self._timer.cancel()

    def _fire(self) -> None:
        silence = self._loop.time() - self._last_write
        if silence >= KEEP_ALIVE_SECONDS:
            self._run.collector.nudge()
            silence = 0.0
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS - silence, self._fire)
