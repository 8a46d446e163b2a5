"""Fairness between tenants in the queue of waiting requests."""

from typing import Any

from engined.protocol.engine import EngineCoreRequest
from engined.protocol.sampling import SamplingParams
from engined.scheduler.fair_share import MAX_OUTPUT_COST, UNITS_PER_TOKEN, FairShare
from engined.scheduler.request import Request
from engined.scheduler.request_queue import RequestQueue


def make(name: str, tenant: str, num_prompt_tokens: int = 10, max_tokens: int = 10, **fields: Any) -> Request:
    message = EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[1] * num_prompt_tokens,
        sampling=SamplingParams(max_tokens=max_tokens),
        arrival_time=0.0,
        tenant=tenant,
        **fields,
    )
    return Request(message, 0, None)


def admit(queue: RequestQueue) -> str:
    request = queue.first()
    queue.remove(request)
    queue.note_admitted(request)
    return request.request_id


def test_a_flood_stands_behind_the_single_request_of_another() -> None:
    queue = RequestQueue("fcfs")
    for number in range(1000):
        queue.add(make(f"flood-{number}", "loud"))
    assert [admit(queue) for _ in range(5)] == [f"flood-{number}" for number in range(5)]
    queue.add(make("single", "quiet"))
    queue.add(make("second", "quiet"))
    order = [admit(queue) for _ in range(4)]
    assert order.index("single") <= 1, "at most one request of each other tenant goes before it"
    assert order.index("second") <= 3, "then they take turns"


def test_turns_are_taken_by_tokens_not_by_requests() -> None:
    queue = RequestQueue("fcfs")
    for number in range(6):
        queue.add(make(f"long-{number}", "a", num_prompt_tokens=90))
    for number in range(60):
        queue.add(make(f"short-{number}", "b", num_prompt_tokens=0 + 10, max_tokens=0))
    names = [admit(queue) for _ in range(33)]
    assert sum(name.startswith("long") for name in names) == 3, "100 tokens of one for 100 of the other"


def test_one_tenant_is_served_in_order_and_whoever_was_idle_has_saved_nothing_up() -> None:
    queue = RequestQueue("fcfs")
    for number in range(50):
        queue.add(make(f"r{number}", "only", num_prompt_tokens=1 + number % 7))
    assert [admit(queue) for _ in range(50)] == [f"r{number}" for number in range(50)]
    for number in range(4):
        queue.add(make(f"x{number}", "late"))
        queue.add(make(f"y{number}", "only"))
    assert {name[0] for name in [admit(queue) for _ in range(2)]} == {"x", "y"}


def test_an_aborted_request_moves_no_time_and_idle_tenants_are_forgotten() -> None:
    queue = RequestQueue("fcfs")
    first, second = make("a", "t"), make("b", "t")
    queue.add(first)
    queue.add(second)
    queue.remove(second)
    queue.add(make("c", "u"))
    assert [admit(queue), admit(queue)] == ["a", "c"]
    shares = FairShare()
    for number in range(1000):
        shares.note_admitted(shares.start_time(f"tenant-{number}", MAX_OUTPUT_COST, 1.0))
    shares.note_admitted(MAX_OUTPUT_COST * UNITS_PER_TOKEN)
    assert not shares._next_start


def test_twice_the_weight_is_twice_the_share() -> None:
    queue = RequestQueue("fcfs")
    for number in range(40):
        queue.add(make(f"light-{number}", "light"))
        queue.add(make(f"heavy-{number}", "heavy", tenant_weight=2.0))
    names = [admit(queue) for _ in range(30)]
    assert sum(name.startswith("heavy") for name in names) == 20


def test_a_batch_is_not_charged_to_its_tenants_other_requests() -> None:
    queue = RequestQueue("fcfs")
    for number in range(100):
        queue.add(make(f"line-{number}", "a", is_background=True))
    for number in range(5):
        queue.add(make(f"b-{number}", "b"))
    queue.add(make("single", "a"))
    order = [admit(queue) for _ in range(7)]
    assert order.index("single") <= 1
    assert order[-1] == "line-0"
    assert queue.request_ids() == [f"line-{number}" for number in range(1, 100)]
