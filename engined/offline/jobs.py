"""Many inputs in one call: all are checked before anything runs, a bounded number runs at once, results are in order.

Runs on the loop of `EngineThread`; called by `work`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engined.offline.requests import Inputs

_PREPARED_AT_ONCE = 64

Request = TypeVar("Request")
Job = TypeVar("Job")
Result = TypeVar("Result")


async def prepare_all(prepare: Callable[[Request], Awaitable[Job]], requests: Inputs[Request]) -> Inputs[Job]:
    """Check and tokenize every request. Raises RequestError for the first one that is at fault."""
    jobs: list[Job] = []
    for start in range(0, len(requests.items), _PREPARED_AT_ONCE):
        some = requests.items[start : start + _PREPARED_AT_ONCE]
        results = await asyncio.gather(*map(prepare, some), return_exceptions=True)
        for index, result in enumerate(results, start):
            with requests.at(index):
                if isinstance(result, BaseException):
                    raise result
                jobs.append(result)
    return Inputs(jobs, requests.name)


async def run_all(run: Callable[[Job], Awaitable[Result]], jobs: Inputs[Job], num_at_once: int) -> list[Result]:
    """Run the jobs, at most `num_at_once` together. The first error cancels the others and is raised."""
    results: dict[int, Result] = {}
    waiting = iter(enumerate(jobs.items))

    async def work() -> None:
        for index, job in waiting:
            with jobs.at(index):
                results[index] = await run(job)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(num_at_once, len(jobs.items))):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[index] for index in range(len(jobs.items))]
