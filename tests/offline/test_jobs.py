"""Many jobs, a few at a time, without an engine."""

import asyncio

import pytest

from engined.errors import RequestError
from engined.offline.jobs import prepare_all, run_all
from engined.offline.requests import Inputs


async def test_results_keep_their_order_and_few_run_at_once() -> None:
    running, most = 0, 0

    async def run(job: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (job % 3))
        running -= 1
        return job * job

    jobs = list(range(50))
    assert await run_all(run, Inputs(jobs, "jobs"), 4) == [job * job for job in jobs]
    assert most == 4


async def test_the_first_error_cancels_the_others() -> None:
    cancelled = []

    async def run(job: int) -> None:
        if job == 5:
            raise RequestError("no")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(job)
            raise

    with pytest.raises(RequestError, match=r"^jobs\[5\]: no$"):
        await run_all(run, Inputs(list(range(100)), "jobs"), 8)
    assert sorted(cancelled) == [0, 1, 2, 3, 4, 6, 7]


async def test_a_cancelled_run_cancels_its_jobs() -> None:
    num_running = 0

    async def run(job: int) -> None:
        nonlocal num_running
        num_running += 1
        try:
            await asyncio.sleep(60)
        finally:
            num_running -= 1

    task = asyncio.create_task(run_all(run, Inputs(list(range(9)), None), 3))
    while num_running < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert num_running == 0


async def test_the_first_bad_request_is_named_and_ends_the_preparation() -> None:
    prepared = []

    async def prepare(request: int) -> str:
        prepared.append(request)
        await asyncio.sleep(0.001 * (200 - request) / 100)
        if request in (70, 71):
            raise RequestError(f"{request} is bad")
        return str(request)

    with pytest.raises(RequestError, match=r"^requests\[70\]: 70 is bad$"):
        await prepare_all(prepare, Inputs(list(range(1000)), "requests"))
    assert len(prepared) < 200
    assert (await prepare_all(prepare, Inputs([3, 4], "requests"))).items == ["3", "4"]
