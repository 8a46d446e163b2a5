"""Runs a batch: answers its lines, a bounded number at a time, and writes each result as it comes. Asyncio; used by
`engined run-batch` and by the frontend, which differ in how a line is answered."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable

from engined.batch.journal import Journal
from engined.batch.request_line import LineFault, RequestLine, asks_for_stream, parse_line
from engined.batch.result_line import ErrorPart, LineAnswer, ResultLine, answered, refused
from engined.errors import BatchError, EnginedError

logger = logging.getLogger(__name__)

PASSING_STATUSES = frozenset((429, 502, 503, 504))
"""The server cannot take the request now; it is sent again until it can."""
MAX_FAILURES = 4
"""Attempts that may fail for reasons that can lie in the request: a 500, or a server that dies of it."""
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
_NO_STREAM = ErrorPart(code="unsupported_parameter", message="stream: a file holds no stream; leave it out")


class Unanswered(EnginedError):
    """A request got no answer. `was_sent` tells whether the server may have died of it."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


Answer = Callable[[RequestLine], Awaitable[LineAnswer]]
"""Answers one line; every HTTP status is an answer. Raises Unanswered if there was none."""


async def refuse_rest(
    journal: Journal, lines: Iterable[tuple[int, bytes]], urls: Collection[str], fault: ErrorPart
) -> None:
    """Write `fault` as the result of every line that has none yet."""
    for number, data in lines:
        await asyncio.sleep(0)
        custom_id = _custom_id(data, urls)
        if not journal.has(number, custom_id):
            journal.write(refused(number, custom_id, fault))


def count_unfinished(journal: Journal, lines: Iterable[tuple[int, bytes]], urls: Collection[str]) -> int:
    """How many lines have no result yet."""
    return sum(not journal.has(number, _custom_id(data, urls)) for number, data in lines)


def _custom_id(data: bytes, urls: Collection[str]) -> str | None:
    try:
        return parse_line(data, urls).custom_id
    except LineFault as fault:
        return fault.custom_id


class BatchRunner:
    """One batch under way. Cancelling `run` gives up the lines under way, which a later run does again."""

    def __init__(
        self,
        journal: Journal,
        answer: Answer,
        urls: Collection[str],
        seats: asyncio.Semaphore,
        *,
        patience: float | None = None,
        on_result: Callable[[], None] | None = None,
    ) -> None:
        """`seats` bounds the lines under way, those of other batches included. If no line at all is answered for
        `patience` seconds, the run fails; None is for ever. `on_result` is called for each new result."""
        self._journal = journal
        self._answer = answer
        self._urls = urls
        self._seats = seats
        self._patience = patience
        self._on_result = on_result
        self._stopping = asyncio.Event()
        self._last_answer = 0.0

    def stop(self) -> None:
        """Begin no further line; `run` returns once those under way are answered."""
        self._stopping.set()

    async def run(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Answer the lines (number and text) that have no result yet.

        Raises BatchError if the server stayed silent for too long, and OSError if a result cannot be written.
        """
        self._last_answer = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, data in lines:
                    await self._begin(number, data, tasks)
                    if self._stopping.is_set():
                        break
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        await asyncio.to_thread(self._journal.sync)

    async def _begin(self, number: int, data: bytes, tasks: asyncio.TaskGroup) -> None:
        try:
            line = parse_line(data, self._urls)
        except LineFault as fault:
            await asyncio.sleep(0)
            if not self._journal.has(number, fault.custom_id):
                self._write(
                    refused(number, fault.custom_id, ErrorPart(code=fault.code, message=f"line {number}: {fault}"))
                )
            return
        if self._journal.has(number, line.custom_id):
            await asyncio.sleep(0)
            return
        await self._seats.acquire()
        if self._stopping.is_set():
            self._seats.release()
        else:
            tasks.create_task(self._finish(number, line))

    async def _finish(self, number: int, line: RequestLine) -> None:
        try:
            result = await self._answer_patiently(number, line)
        finally:
            self._seats.release()
        if result is not None:
            self._write(result)
            if self._journal.is_sync_due:
                await asyncio.to_thread(self._journal.sync)

    def _write(self, result: ResultLine) -> None:
        self._journal.write(result)
        if self._on_result is not None:
            self._on_result()

    async def _answer_patiently(self, number: int, line: RequestLine) -> ResultLine | None:
        """The result; None if the run stops before the server could give one."""
        if asks_for_stream(line):
            return refused(number, line.custom_id, _NO_STREAM)
        num_failures = 0
        delay = FIRST_DELAY_SECONDS
        while True:
            try:
                answer = await self._answer(line)
            except Unanswered as error:
                num_failures += error.was_sent
                reason = str(error)
                final = refused(number, line.custom_id, ErrorPart(code="no_answer", message=reason))
            else:
                is_passing = answer.status in PASSING_STATUSES
                num_failures += not is_passing
                reason = f"status {answer.status}"
                final = answered(number, line.custom_id, answer)
                if not is_passing:
                    self._last_answer = asyncio.get_running_loop().time()
                    if answer.status < 500:
                        return final
            if num_failures == MAX_FAILURES:
                return final
            self._check_patience(reason)
            logger.info("line %d: %s; again in %.1f s", number, reason, delay)
            if await self._must_stop_within(delay * random.uniform(0.5, 1.0)):
                return None
            delay = min(delay * 2, LONGEST_DELAY_SECONDS)

    def _check_patience(self, reason: str) -> None:
        silence = asyncio.get_running_loop().time() - self._last_answer
        if self._patience is not None and silence > self._patience:
            raise BatchError(f"no line was answered for {silence:.0f} s ({reason}); run it again to go on")

    async def _must_stop_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True
