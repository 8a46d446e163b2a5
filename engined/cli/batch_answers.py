"""Answers the lines of a batch through the client: the asyncio side of `engined run-batch`."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engined.batch.journal import Journal
from engined.batch.request_line import BATCH_URLS, RequestLine, read_lines
from engined.batch.result_line import LineAnswer
from engined.batch.runner import BatchRunner, Unanswered
from engined.cli.private_daemon import PrivateDaemon
from engined.client import AsyncClient, ClientError, ServerUnreachableError

PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """What is to be done, whoever answers."""

    input_path: Path
    journal: Journal
    on_result: Callable[[], None]


async def answer_lines(work: BatchWork, client: AsyncClient, max_lines: int, daemon: PrivateDaemon | None) -> None:
    """Answer the lines that have no result yet, at most `max_lines` at once, until all have one.

    `daemon` is the one that `client` talks to, if it is ours. Raises StartupError if that ends, ClientError if nobody
    listens at first, BatchError if the server is gone for too long, OSError if a result cannot be written.
    """
    if daemon is not None:
        await daemon.until_ready()
    async with client:
        await _check_reachable(client)

        async def answer(line: RequestLine) -> LineAnswer:
            return await _answer(client, line)

        seats = asyncio.Semaphore(max_lines)
        runner = BatchRunner(
            work.journal, answer, BATCH_URLS, seats, patience=PATIENCE_SECONDS, on_result=work.on_result
        )
        lines = runner.run(read_lines(work.input_path))
        await (lines if daemon is None else _unless(daemon.until_end(), lines))


async def _check_reachable(client: AsyncClient) -> None:
    """A wrong address is told at once; a server that is not ready yet is waited for, line by line."""
    try:
        await client.health()
    except ServerUnreachableError:
        raise
    except ClientError:
        return


async def _answer(client: AsyncClient, line: RequestLine) -> LineAnswer:
    try:
        answer = await client.post(line.url, bytes(line.body))
    except ClientError as error:
        raise Unanswered(str(error), was_sent=not isinstance(error, ServerUnreachableError)) from error
    if answer.status == 401:  # so it would be for every line
        raise ClientError("the server does not accept the API key: give the right one with --api-key", status=401)
    try:
        body = orjson.loads(answer.body)
    except orjson.JSONDecodeError:  # a proxy in between
        body = answer.body.decode(errors="replace")
    return LineAnswer(status=answer.status, request_id=answer.request_id, body=body)


async def _unless(failure: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]) -> None:
    """Await `work`; if `failure` ends first, raise what it raises."""
    tasks = [asyncio.create_task(work), asyncio.create_task(failure)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
