"""Faults inside: each one strikes the first time its place is reached, then the second, and so on until a run passes
untouched, as SQLite does it. After each: one end for each request, only what must die has died, and all is well again.

CI does this where only requests end, and once for each fault that ends a process; `reliability_full` does it for all.
"""

import time
from dataclasses import dataclass
from typing import Literal

import pytest

from engined import faults
from tests.reliability.clients import OpenRequest
from tests.reliability.daemon import Daemon
from tests.reliability.fleet import STEP_TIMEOUT, Fleet

Effect = Literal["nothing", "one request", "link", "engine", "frontend"]
"""The most that may end: a link takes all requests with it, a process too."""
MAX_ROUNDS = 100
NUM_TOKENS = 3
READY_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A place, what happens there, and what may come of it."""

    process: str
    place: str
    action: str
    effect: Effect
    limit: float = 1.0
    """Seconds until the requests have ended."""

    def __str__(self) -> str:
        return f"{self.process}-{self.place}-{self.action}"


HARMLESS = [
    Fault("EngineCore", "request.make", "raise", "one request"),
    Fault("EngineCore", "request.update", "raise", "one request"),
    Fault("frontend", "request.output", "raise", "one request"),
    Fault("frontend", "ipc.recv", "delay=0.2", "nothing"),
    Fault("EngineCore", "ipc.recv", "delay=0.2", "nothing"),
    Fault("frontend", "ipc.recv", "raise", "link"),
    Fault("frontend", "ipc.send.partial", "now", "link"),
    Fault("EngineCore", "ipc.send.partial", "now", "link"),
]
FATAL = [
    Fault("EngineCore", "thread.input", "raise", "engine"),
    Fault("EngineCore", "thread.output", "raise", "engine"),
    Fault("EngineCore", "thread.loop", "raise", "engine"),
    Fault("EngineCore", "step", "raise", "engine"),
    Fault("EngineCore", "step", "hang", "engine", limit=STEP_TIMEOUT + 4.0),
    Fault("EngineCore", "alloc", "memory", "engine"),
    Fault("EngineCore", "prefill", "raise", "engine"),
    Fault("EngineCore", "decode", "memory", "engine"),
    Fault("frontend", "task.outputs", "raise", "frontend"),
]
CI_FATAL = [fault for fault in FATAL if fault.place in ("thread.input", "task.outputs")]
"""One thread and one task; the kill matrix has the same restarts."""


@pytest.mark.parametrize("fault", HARMLESS, ids=str)
def test_until_a_run_passes_untouched(fleet: Fleet, fault: Fault) -> None:
    rounds = strike_until_untouched(fleet, fault, MAX_ROUNDS)
    print(f"{fault}: {rounds} rounds")


@pytest.mark.parametrize("fault", CI_FATAL, ids=str)
def test_the_first_time(fleet: Fleet, fault: Fault) -> None:
    assert strike_until_untouched(fleet, fault, 1) == 1


@pytest.mark.reliability_full
@pytest.mark.parametrize("fault", FATAL, ids=str)
def test_fatal_until_a_run_passes_untouched(fleet: Fleet, fault: Fault) -> None:
    rounds = strike_until_untouched(fleet, fault, MAX_ROUNDS)
    print(f"{fault}: {rounds} rounds")


def strike_until_untouched(fleet: Fleet, fault: Fault, max_rounds: int) -> int:
    """Let it strike the 1st time, the 2nd, ...; the number of rounds, the untouched one included."""
    expected = answer(fleet)
    for number in range(1, max_rounds + 1):
        if not strike(fleet, fault, number, expected):
            assert number > 1, "the place was never reached"
            return number
    assert max_rounds < MAX_ROUNDS, "there is no end to it"
    return max_rounds


def strike(fleet: Fleet, fault: Fault, number: int, expected: str) -> bool:
    """One run of a streamed and a whole request. Whether the fault struck."""
    harmed = fleet.ready("engine")
    pids = {role: harmed.pid(role) for role in ("supervisor", "frontend", "engine")}
    line = f"{fault.process} {fault.place} {number} {fault.action}"
    harmed.forget(line)
    harmed.plan(line)
    time.sleep(0.05)
    requests = [OpenRequest(harmed.port, stream=stream, max_tokens=NUM_TOKENS) for stream in (True, False)]
    for request in requests:
        request.join(fault.limit + 20.0)
    # An input thread that ends its process may do so at the very end of the run.
    time.sleep(0.05)
    has_struck = harmed.struck(line)
    harmed.plan("")
    check_requests(harmed, fault, requests, line, expected)
    if has_struck:
        check_processes(harmed, fault, pids)
    if has_struck and fault.effect in ("engine", "frontend"):
        fleet.give_back(harmed)
    else:
        fleet.keep(harmed)
    return has_struck


def check_requests(harmed: Daemon, fault: Fault, requests: list[OpenRequest], line: str, expected: str) -> None:
    for request in requests:
        assert len(request.endings) <= 1, request.endings
        assert request.endings or (request.is_cut and fault.effect == "frontend"), "cut, and its server lives"
        if request.endings == ["length"]:
            assert request.text == expected
    num_good = sum(request.endings == ["length"] for request in requests)
    if not harmed.struck(line) or fault.effect == "nothing":
        assert num_good == 2, [request.endings for request in requests]
        return
    if fault.effect == "one request":
        assert num_good == 1, [request.endings for request in requests]
    struck_at = harmed.wait_struck(line)[1]
    for request in requests:
        if request.endings != ["length"]:
            assert request.ended_at - struck_at <= fault.limit, request.endings


def check_processes(harmed: Daemon, fault: Fault, pids: dict[str, int]) -> None:
    """Who had to die has died and is there again; the others are the same."""
    if fault.effect in ("engine", "frontend"):
        deadline = time.monotonic() + 5
        while harmed.has_pid(pids[fault.effect]):
            assert time.monotonic() < deadline, f"the {fault.effect} lives on: {fault}"
            time.sleep(0.02)
    harmed.wait_ready(READY_TIMEOUT)
    for role, pid in pids.items():
        assert (harmed.pid(role) == pid) == (role != fault.effect), role


def answer(fleet: Fleet) -> str:
    """What the requests of a run must say."""
    harmed = fleet.ready("engine")
    request = OpenRequest(harmed.port, stream=False, max_tokens=NUM_TOKENS)
    request.join()
    fleet.keep(harmed)
    assert request.endings == ["length"]
    return request.text


def test_one_of_many_fails_and_the_others_do_not_notice(fleet: Fleet) -> None:
    """R10: with 32 requests in the same steps."""
    harmed = fleet.ready("engine")
    engine = harmed.pid("engine")
    prompts = [f"request number {number}" for number in range(32)]
    alone = [run_one(harmed, prompt) for prompt in prompts]
    for place in ("EngineCore request.update 300 raise", "frontend request.output 300 raise"):
        harmed.forget(place)
        harmed.plan(place)
        time.sleep(0.05)
        requests = [OpenRequest(harmed.port, stream=True, max_tokens=24, prompt=prompt) for prompt in prompts]
        for request in requests:
            request.join()
        assert harmed.struck(place)
        failed = [request for request in requests if request.endings != ["length"]]
        assert len(failed) == 1 and failed[0].endings[0].startswith("error: internal error"), failed
        texts = [(request.text, text) for request, text in zip(requests, alone, strict=True) if request not in failed]
        assert all(mine == text for mine, text in texts)
    assert harmed.pid("engine") == engine
    harmed.server.wait_for_metric("engined:num_requests_running", 0)
    assert harmed.server.metric("engined:kv_cache_usage_perc") == 0
    fleet.keep(harmed)


def run_one(harmed: Daemon, prompt: str) -> str:
    request = OpenRequest(harmed.port, stream=True, max_tokens=24, prompt=prompt)
    request.join()
    assert request.endings == ["length"]
    return request.text


def test_no_descriptor_for_a_frontend_that_comes_back(fleet: Fleet) -> None:
    """R24 in the engine: it cannot accept the link, and can a moment later."""
    harmed = fleet.ready("engine")
    engine = harmed.pid("engine")
    harmed.plan("EngineCore accept 1 emfile\nfrontend ipc.send.partial 1 now")
    time.sleep(0.05)
    request = OpenRequest(harmed.port, stream=False)
    request.join()
    assert request.endings and request.endings[0].startswith("error: the engine died")
    harmed.wait_struck("EngineCore accept 1 emfile")
    harmed.wait_ready(5)
    assert harmed.pid("engine") == engine
    harmed.plan("")
    fleet.keep(harmed)


@pytest.mark.alone
def test_a_place_costs_nothing_to_speak_of() -> None:
    started = time.perf_counter()
    for _ in range(100_000):
        faults.point("nowhere")
    assert (time.perf_counter() - started) / 100_000 < 2e-6
