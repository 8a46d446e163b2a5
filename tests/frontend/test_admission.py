"""What is taken in and what is refused: the bounded queue, the limits of a key, and that every place is given back."""

import asyncio
import contextlib
import hashlib
import random
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engined.config.api_keys import KeyLimits
from engined.config.schema import Config, ServerConfig
from engined.errors import RequestError
from engined.frontend.access.caller import EVERYBODY, Caller
from engined.frontend.admission.allowance import Allowance
from engined.frontend.admission.backlog import Backlog, expected_tokens
from engined.frontend.admission.gate import Gate, Place
from engined.frontend.admission.token_bucket import TokenBucket
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.sampling import SamplingParams
from tests.frontend.conftest import RunningFrontend, StartFrontend

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "one two three", "max_tokens": 8}


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sequence(num_prompt_tokens: int, max_tokens: int = 16) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id="x",
        prompt_token_ids=[1] * num_prompt_tokens,
        sampling=SamplingParams(max_tokens=max_tokens),
        arrival_time=0.0,
    )


def limited(**limits: int) -> Caller:
    return Caller(key_id=b"k", name="key", scopes=EVERYBODY.scopes, limits=KeyLimits(**limits))


# The parts, with a clock of their own


def test_a_bucket_fills_evenly_and_holds_one_minute() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.take(60)
    assert bucket.remaining(0.0) == 0
    assert bucket.seconds_until(1, 0.0) == pytest.approx(1.0)
    assert bucket.seconds_until(1, 1.0) == 0.0
    assert bucket.seconds_until_full(10.0) == pytest.approx(50.0)
    assert bucket.remaining(10_000.0) == 60


def test_more_than_a_bucket_holds_passes_when_it_is_full_and_leaves_a_debt() -> None:
    bucket = TokenBucket(60, now=0.0)
    assert bucket.seconds_until(600, 0.0) == 0.0
    bucket.take(600)
    assert bucket.seconds_until(1, 0.0) == pytest.approx(541.0)


def test_retry_after_is_the_time_in_which_half_of_the_queue_gets_its_turn() -> None:
    clock = Clock()
    backlog = Backlog(clock)
    assert backlog.retry_after() == 5.0
    for owner in range(120):
        backlog.add(owner, 10)
    for owner in range(20):  # two a second
        backlog.remove(owner, 10)
        clock.now += 0.5
    assert (backlog.num_requests, backlog.num_tokens) == (100, 1000)
    assert backlog.retry_after() == pytest.approx(100 / 2 / 2.0)
    clock.now += 600  # nothing for ten minutes: the rate is unknown again
    assert backlog.retry_after() == 5.0


def test_an_output_counts_with_its_limit_but_not_with_more_than_1024() -> None:
    assert expected_tokens(sequence(10, 20)) == 30
    assert expected_tokens(sequence(10, 100_000)) == 10 + 1024


def test_a_request_that_finds_nobody_waiting_is_never_too_large() -> None:
    backlog = Backlog()
    gate = Gate(backlog, 10, 100)
    large = gate.enter(gate.allowance(EVERYBODY))
    large.settle([sequence(5000)])
    backlog.add("large", 5016)
    with pytest.raises(RequestError, match="max-queued-tokens"):
        gate.enter(gate.allowance(EVERYBODY))


def test_tokens_are_charged_when_known_and_corrected_by_what_was_used() -> None:
    clock = Clock()
    allowance = Allowance("alice", KeyLimits(tokens_per_minute=100), clock)
    gate = Gate(Backlog(), 10, 1000, clock)
    place = gate.enter(allowance)
    place.settle([sequence(20, 40)])
    assert dict(allowance.headers())["x-ratelimit-remaining-tokens"] == "40"
    with pytest.raises(RequestError) as refused:
        gate.take_tokens(allowance, 70)
    assert refused.value.retry_after == pytest.approx(30 * 60 / 100)
    place.note_usage(25)
    place.leave()
    assert dict(allowance.headers())["x-ratelimit-remaining-tokens"] == "75"
    assert dict(allowance.headers())["x-ratelimit-reset-tokens"] == "15s"


def test_limits_that_were_reloaded_begin_unused_and_others_stay() -> None:
    gate = Gate(Backlog(), 10, 1000)
    allowance = gate.allowance(limited(requests_per_minute=5))
    allowance.begin()
    assert gate.allowance(limited(requests_per_minute=5)) is allowance
    assert gate.allowance(limited(requests_per_minute=6)) is not allowance


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "settle", "note_usage", "leave"]), st.integers(0, 7), st.integers(0, 60)),
    max_size=60,
)


@given(STEPS)
def test_places_are_given_back_in_whatever_order_things_happen(steps: list[tuple[str, int, int]]) -> None:
    gate = Gate(Backlog(), 4, 100)
    allowance = gate.allowance(limited(max_concurrency=3, tokens_per_minute=100, requests_per_minute=20))
    places: list[Place] = []
    for step, index, size in steps:
        with contextlib.suppress(RequestError):
            if step == "enter":
                places.append(gate.enter(allowance))
            elif places:
                place = places[index % len(places)]
                if step == "settle":
                    place.settle([sequence(size, 1)])
                elif step == "note_usage":
                    place.note_usage(size)
                else:
                    place.leave()
        assert 0 <= gate.num_preparing <= 4
        assert 0 <= allowance.num_running <= 3
    for place in places:
        place.leave()
    assert (gate.num_preparing, allowance.num_running) == (0, 0)


# The whole, over HTTP


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def fill(frontend: RunningFrontend, count: int, body: dict[str, Any] = BODY) -> list[asyncio.Task[Any]]:
    """Let so many requests wait in the engine."""
    frontend.engine.holds = lambda request: True
    tasks = [asyncio.create_task(frontend.post(COMPLETIONS, body)) for _ in range(count)]
    await until(lambda: len(frontend.engine.waiting) == count)
    return tasks


async def cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def is_empty(frontend: RunningFrontend) -> bool:
    gate = frontend.pressure.gate
    return (gate.num_waiting, gate.num_waiting_tokens, gate.num_preparing) == (0, 0, 0)


async def time_to_refusal(frontend: RunningFrontend) -> float:
    """Seconds from the head of a large request, whose body has not been sent, to a 429."""
    reader, writer = await asyncio.open_unix_connection(frontend.path)
    start = time.perf_counter()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: 1000000\r\n\r\n")
    line = await reader.readline()
    seconds = time.perf_counter() - start
    assert b" 429 " in line
    writer.close()
    return seconds


async def test_a_full_queue_refuses_at_once_and_takes_in_again(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(max_queued_requests=3)))
    tasks = await fill(frontend, 3)
    seconds = [await time_to_refusal(frontend) for _ in range(20)]
    assert sorted(seconds)[10] < 0.02, seconds
    async with frontend.client.post(f"http://engined{COMPLETIONS}", json={"prompt": "word " * 200_000}) as response:
        assert response.status == 429
        error = (await response.json())["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert 1 <= int(response.headers["Retry-After"]) <= 60
    status, body = await frontend.post(
        "/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8}
    )
    assert (status, body["error"]["type"]) == (429, "rate_limit_error")
    assert len(frontend.engine.added) == 3
    assert (await frontend.get("/v1/models"))[0] == 200
    await cancel(tasks)
    frontend.engine.holds = lambda request: False
    await until(lambda: is_empty(frontend))
    assert (await frontend.post(COMPLETIONS, BODY))[0] == 200
    assert await frontend.metric_of_process("queue_refusals_total") == 22


async def test_a_queue_full_of_tokens_refuses(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(max_queued_tokens=40)))
    tasks = await fill(frontend, 1, {"prompt": "x " * 20, "max_tokens": 8})
    waiting = frontend.pressure.gate.num_waiting_tokens
    status, body = await frontend.post(COMPLETIONS, {"prompt": "x " * 40, "max_tokens": 8})
    assert (status, body["error"]["code"]) == (429, "queue_full")
    assert frontend.pressure.gate.num_waiting_tokens == waiting > 20
    await cancel(tasks)


async def test_what_is_still_read_counts(start_frontend: StartFrontend) -> None:
    """A flood of half-sent bodies takes the places that its requests would take; what has begun takes none."""
    frontend = await start_frontend(config=Config(server=ServerConfig(max_queued_requests=2)))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    writers = []
    for _ in range(2):
        _, writer = await asyncio.open_unix_connection(frontend.path)
        writer.write(head)
        writers.append(writer)
    await until(lambda: frontend.pressure.gate.num_preparing == 2)
    assert (await frontend.post(COMPLETIONS, BODY))[0] == 429
    for writer in writers:
        writer.close()
    await until(lambda: is_empty(frontend))
    frontend.engine.stall_after = 1
    tasks = []
    for count in range(1, 5):
        tasks.append(asyncio.create_task(frontend.post(COMPLETIONS, BODY)))
        await until(lambda count=count: len(frontend.engine.running) == count and is_empty(frontend))
    await cancel(tasks)


# Keys


@pytest.fixture
def keyed(tmp_path: Path) -> Config:
    path = tmp_path / "keys"
    limits = {"few": "requests_per_minute=2", "one": "max_concurrency=1", "small": "tokens_per_minute=60", "free": ""}
    path.write_text("".join(f"{name} sha256:{digest(name)} {rest}\n" for name, rest in limits.items()))
    path.chmod(0o600)
    return Config(server=ServerConfig(api_keys_file=str(path)))


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def ask(frontend: RunningFrontend, key: str, body: Any = BODY) -> tuple[int, Any, dict[str, str]]:
    async with frontend.client.post(f"http://engined{COMPLETIONS}", json=body, headers=bearer(key)) as response:
        is_json = response.content_type == "application/json"
        return response.status, await (response.json() if is_json else response.text()), dict(response.headers)


async def test_limits_of_keys(start_frontend: StartFrontend, keyed: Config) -> None:
    frontend = await start_frontend(keyed)
    await check_requests_per_minute(frontend)
    assert frontend.pressure.gate.num_limited == 1
    await check_tokens_per_minute(frontend)
    await check_max_concurrency(frontend)
    status, _, headers = await ask(frontend, "free")
    assert status == 200 and not any(name.startswith("x-ratelimit") for name in headers)


async def check_requests_per_minute(frontend: RunningFrontend) -> None:
    status, _, headers = await ask(frontend, "few")
    assert status == 200
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert 28 <= float(headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 30
    assert "x-ratelimit-limit-tokens" not in headers
    assert (await ask(frontend, "few"))[0] == 200
    status, body, headers = await ask(frontend, "few")
    assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
    assert body["error"]["type"] == "rate_limit_error" and "requests_per_minute" in body["error"]["message"]
    assert 26 <= int(headers["Retry-After"]) <= 30
    assert headers["x-ratelimit-remaining-requests"] == "0"


async def check_tokens_per_minute(frontend: RunningFrontend) -> None:
    """A stream tells what was charged at its head, a whole answer what was used."""
    body = {"prompt": "one two", "max_tokens": 40, "stop": ["capital"]}
    status, _, headers = await ask(frontend, "small", {**body, "stream": True})
    assert status == 200 and int(headers["x-ratelimit-remaining-tokens"]) <= 20
    status, _, headers = await ask(frontend, "small", body)
    assert status == 200 and int(headers["x-ratelimit-remaining-tokens"]) >= 40
    status, answer, headers = await ask(frontend, "small", {**body, "max_tokens": 70})
    assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(headers["Retry-After"]) <= 20


async def check_max_concurrency(frontend: RunningFrontend) -> None:
    frontend.engine.stall_after = 1
    first = asyncio.create_task(ask(frontend, "one"))
    await until(lambda: frontend.engine.running)
    status, body, headers = await ask(frontend, "one")
    assert (status, body["error"]["code"], headers["Retry-After"]) == (429, "rate_limit_exceeded", "1")
    await cancel([first])
    await until(lambda: not frontend.engine.running)
    frontend.engine.stall_after = None
    assert (await ask(frontend, "one"))[0] == 200


# Whatever way a request ends


async def run_one(frontend: RunningFrontend, rng: random.Random) -> None:
    """One request of a random kind, which may be cut off at a random moment."""
    url = f"http://engined{COMPLETIONS}"
    message = {"messages": [{"role": "user", "content": "hi"}]}
    kinds: list[tuple[str, dict[str, Any]]] = [
        (COMPLETIONS, {"json": BODY}),
        (COMPLETIONS, {"json": {**BODY, "stream": True, "n": 3}}),
        (COMPLETIONS, {"json": {**BODY, "prompt": ["a", "b"], "timeout_s": 0.01}}),
        (COMPLETIONS, {"json": {**BODY, "ttft_timeout_s": 0.001}}),
        (COMPLETIONS, {"json": {**BODY, "temperature": "hot"}}),
        (COMPLETIONS, {"json": {"prompt": "x " * 2000}}),
        (COMPLETIONS, {"data": b"{", "headers": {"Content-Type": "application/json"}}),
        (COMPLETIONS, {"data": b"{}", "headers": {"Content-Type": "text/plain"}}),
        ("/v1/chat/completions", {"json": {**message, "stream": True}}),
        ("/v1/messages", {"json": {**message, "max_tokens": 4}}),
        ("/v1/responses", {"json": {"input": "hi"}}),
        ("/v1/embeddings", {"json": {"input": "hi"}}),
        ("/tokenize", {"json": {"prompt": "hi"}}),
    ]
    path, arguments = rng.choice(kinds)
    url = f"http://engined{path}"
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(rng.choice([0.001, 0.005, 0.02, 0.05, 1.0])):
            async with frontend.client.post(url, **arguments) as response:
                if rng.random() < 0.3:
                    await response.content.readline()
                else:
                    await response.read()


@pytest.mark.parametrize("seed", range(2))
async def test_every_place_is_given_back(start_frontend: StartFrontend, seed: int) -> None:
    """Errors, deadlines, clients that go away at any moment, an engine that dies: afterwards nothing is held."""
    rng = random.Random(seed)
    frontend = await start_frontend(config=Config(server=ServerConfig(max_queued_requests=20, max_queued_tokens=5000)))
    frontend.engine.step_delay = 0.002
    frontend.engine.holds = lambda request: rng.random() < 0.2
    tasks = [asyncio.create_task(run_one(frontend, rng)) for _ in range(60)]
    await asyncio.sleep(0.1)
    frontend.engine.die()
    await asyncio.gather(*tasks)
    await until(lambda: is_empty(frontend))
    allowance = frontend.pressure.gate.allowance(EVERYBODY)
    assert allowance.num_running == 0
    await frontend.client.close()
    await until(lambda: frontend.pressure.connections.num_open == 0)
