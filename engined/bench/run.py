"""One run: one point of a workload against one server. Runs in the process of `engined bench`."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engined.bench.answer import Answer, read_answer, read_dropped_answer, read_json
from engined.bench.exchange import Exchange, encode_request, exchange
from engined.bench.measures import RunResult
from engined.bench.plan import (
    Draw,
    PlannedRequest,
    num_requests,
    plan_arrivals,
    plan_requests,
    plan_streams,
    plan_turns,
    plan_warm_up,
)
from engined.bench.server import Server
from engined.bench.workload import ClosedLoop, Conversations, Disturbance, Disturbed, OpenLoop, Point
from engined.errors import BenchError

_WARM_UP_OUTPUT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What does not belong to the workload."""

    vocab_size: int
    """Token ids of prompts lie below it."""
    timeout: float
    """Seconds for one answer."""


class _Client:
    """Sends planned requests to one server whose model is known."""

    def __init__(self, server: Server, timeout: float) -> None:
        self._server = server
        self._timeout = timeout

    async def send(self, request: PlannedRequest, *, wants_token_ids: bool = False, drops: bool = False) -> Exchange:
        """Stream one answer, or hang up at its first token."""
        assert self._server.model is not None
        body = request.body(self._server.model, wants_token_ids=wants_token_ids)
        raw = encode_request(self._server, "POST", request.route(), body)
        return await exchange(self._server, raw, self._timeout, drops_at_first_event=drops)

    async def tokenize(self, text: str) -> list[int]:
        """Ids of a text, from a server that does not tell those that it generates: llama.cpp's. Raises BenchError."""
        body = orjson.dumps({"content": text, "add_special": False})
        raw = encode_request(self._server, "POST", "/tokenize", body)
        try:
            token_ids: list[int] = read_json(await exchange(self._server, raw, self._timeout))["tokens"]
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(
                f"{self._server.name}: neither return_token_ids nor /tokenize gives the ids of an answer, which "
                f"conversations need: {error}"
            ) from None
        return token_ids


async def find_model(server: Server, timeout: float) -> str:
    """The first model that a server lists. Raises BenchError if it cannot be reached, or lists none."""
    raw = encode_request(server, "GET", "/v1/models")
    try:
        return str(read_json(await exchange(server, raw, timeout))["data"][0]["id"])
    except ValueError as error:
        raise BenchError(f"no server answers at {server.url} ({server.name}): {error}") from None
    except (KeyError, IndexError, TypeError):
        raise BenchError(f"the server at {server.url} ({server.name}) lists no model: name it in --server") from None


async def run(server: Server, point: Point, seed: str, options: RunOptions) -> RunResult:
    """Warm up with one request, then run the point. Failed requests are in the result; BenchError if none succeeds."""
    draw = Draw(seed, options.vocab_size)
    client = _Client(server, options.timeout)
    warm_up = read_answer(await client.send(plan_warm_up(point.workload, draw, _WARM_UP_OUTPUT)))
    if warm_up.error is not None:
        raise BenchError(f"{server.name}: the request to warm up failed: {warm_up.error}")
    disturbing: list[Exchange] = []
    work = _prepare(client, point, draw, disturbing)
    wall, cpu = time.perf_counter(), time.process_time()
    results = await work
    seconds, client_cpu = time.perf_counter() - wall, time.process_time() - cpu
    result = RunResult(
        answers=[read_answer(each) for each in results],
        disturbing=_read_disturbing(point, disturbing),
        seconds=seconds,
        client_cpu=client_cpu,
    )
    if all(answer.error is not None for answer in result.answers):
        raise BenchError(f"{server.name}: every request failed: {result.errors[0]}")
    return result


def _prepare(
    client: _Client, point: Point, draw: Draw, disturbing: list[Exchange]
) -> Coroutine[Any, Any, list[Exchange]]:
    """The work of a run, which begins when it is awaited: the prompts are drawn by then."""
    level = int(point.level)
    match point.workload:
        case ClosedLoop() as workload:
            return _run_clients(client, plan_requests(workload, num_requests(workload, level), draw), level)
        case OpenLoop() as workload:
            requests = plan_requests(workload, workload.num_requests, draw)
            return _run_arrivals(client, requests, plan_arrivals(workload, point.level, draw))
        case Conversations() as workload:
            return _run_conversations(client, *plan_turns(workload, level, draw), workload.output)
        case Disturbed() as workload:
            requests = plan_streams(workload, level, draw)
            return _run_disturbed(client, requests, workload.disturbance, draw, disturbing)


async def _run_clients(client: _Client, requests: Iterable[PlannedRequest], num_clients: int) -> list[Exchange]:
    results: list[Exchange] = []
    waiting = iter(requests)

    async def work() -> None:
        for request in waiting:
            results.append(await client.send(request))

    await asyncio.gather(*(work() for _ in range(num_clients)))
    return results


async def _run_arrivals(client: _Client, requests: Sequence[PlannedRequest], times: Sequence[float]) -> list[Exchange]:
    async def send_at(request: PlannedRequest, seconds: float) -> Exchange:
        await asyncio.sleep(seconds)
        return await client.send(request)

    return await asyncio.gather(*map(send_at, requests, times))


async def _run_conversations(
    client: _Client, prefix: list[int], conversations: Sequence[list[list[int]]], output: int
) -> list[Exchange]:
    talks = await asyncio.gather(*(_converse(client, prefix, turns, output) for turns in conversations))
    return [result for talk in talks for result in talk]


async def _converse(client: _Client, prefix: list[int], turns: list[list[int]], output: int) -> list[Exchange]:
    """All turns, or those up to the first that fails."""
    results: list[Exchange] = []
    history = list(prefix)
    for new_tokens in turns:
        history += new_tokens
        result = await client.send(PlannedRequest(prompt=list(history), output=output), wants_token_ids=True)
        results.append(result)
        answer = read_answer(result)
        if answer.error is not None:
            break
        history += answer.token_ids or await client.tokenize(answer.text)
    return results


async def _run_disturbed(
    client: _Client,
    requests: Sequence[PlannedRequest],
    disturbance: Disturbance,
    draw: Draw,
    disturbing: list[Exchange],
) -> list[Exchange]:
    """The streams, which begin together; what is still open of the disturbance when they have ended is dropped."""
    disturber = asyncio.create_task(_disturb(client, disturbance, draw, disturbing))
    try:
        return await _run_clients(client, requests, len(requests))
    finally:
        disturber.cancel()
        await asyncio.wait([disturber])


async def _disturb(client: _Client, disturbance: Disturbance, draw: Draw, results: list[Exchange]) -> None:
    async def disturb_once() -> None:
        request = PlannedRequest(prompt=draw.token_ids(disturbance.input), output=disturbance.output)
        results.append(await client.send(request, drops=disturbance.is_cancelled))

    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(disturbance.interval)
            group.create_task(disturb_once())


def _read_disturbing(point: Point, results: list[Exchange]) -> list[Answer]:
    is_dropped = isinstance(point.workload, Disturbed) and point.workload.disturbance.is_cancelled
    return [read_dropped_answer(result) if is_dropped else read_answer(result) for result in results]
