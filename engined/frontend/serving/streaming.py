"""Answers a request as a stream of server-sent events. Frontend process; called by the routes.

The status line waits for the first output, so that whatever fails before it is a plain HTTP error; after it, an error
is an event. A stream that has nothing to say sends a comment now and then, so that no proxy takes it for dead.
"""

import asyncio

from aiohttp import web

from engined.errors import EnginedError
from engined.frontend.async_llm import AsyncLLM
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
                await _write_outputs(response, generation, run, outputs, keep_alive)
            except EnginedError as error:
                run.note_error(error)
                response.force_close()
                await response.write(generation.formatter.error(error) + generation.formatter.terminator)
        finally:
            keep_alive.stop()
    return response


async def _write_outputs(
    response: web.StreamResponse,
    generation: Generation,
    run: GenerationRun,
    outputs: list[ChoiceOutput],
    keep_alive: "_KeepAlive",
) -> None:
    """All that is ready goes out in one write; while that write waits for a slow client, deltas merge."""
    formatter, usage = generation.formatter, generation.usage
    begin = formatter.begin()
    while True:
        data = begin + b"".join(formatter.chunk(output, usage) for output in outputs)
        begin = b""
        if run.is_finished:
            await response.write(data + formatter.end(usage) + formatter.terminator)
            return
        if data or not outputs:
            await response.write(data or formatter.keep_alive)
            keep_alive.note_write()
        outputs = await run.next_outputs()


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
