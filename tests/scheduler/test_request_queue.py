"""The order of waiting requests."""

from engined.config.schema import SchedulingPolicy
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.sampling import SamplingParams
from engined.scheduler.request import Request
from engined.scheduler.request_queue import RequestQueue


def make(name: str, priority: int = 0, arrival_time: float = 0.0, *, background: bool = False) -> Request:
    message = EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[1],
        sampling=SamplingParams(max_tokens=1),
        arrival_time=arrival_time,
        priority=priority,
        is_background=background,
    )
    return Request(message, 0, None)


def fill(policy: SchedulingPolicy, *requests: Request) -> RequestQueue:
    queue = RequestQueue(policy)
    for request in requests:
        queue.add(request)
    return queue


def take(queue: RequestQueue) -> Request:
    request = queue.first()
    queue.remove(request)
    return request


def drain(queue: RequestQueue) -> list[str]:
    return [take(queue).request_id for _ in range(len(queue))]


def test_fcfs_ignores_priorities_and_clocks() -> None:
    assert drain(fill("fcfs", make("a", 5, 9.0), make("b", 0, 1.0), make("c", 1, 0.0))) == ["a", "b", "c"]


def test_priority_then_arrival_then_order() -> None:
    requests = make("a", 1, 1.0), make("b", 0, 2.0), make("c", 0, 1.0), make("d", 0, 1.0), make("e", -1, 9.0)
    assert drain(fill("priority", *requests)) == ["e", "c", "d", "b", "a"]


def test_put_back_goes_before_all_that_came_later() -> None:
    queue = fill("fcfs", make("a"), make("b"), make("c"))
    first, second = take(queue), take(queue)
    queue.put_back(second)
    queue.put_back(first)
    queue.add(make("d"))
    assert drain(queue) == ["a", "b", "c", "d"]


def test_put_back_under_priority_stays_behind_better_requests() -> None:
    queue = fill("priority", make("a", 1))
    preempted = take(queue)
    queue.add(make("b", 0))
    queue.add(make("c", 1))
    queue.put_back(preempted)
    assert drain(queue) == ["b", "a", "c"]


def test_remove_from_anywhere() -> None:
    requests = [make(name) for name in "abcd"]
    queue = fill("fcfs", *requests)
    queue.remove(requests[2])
    queue.remove(requests[0])
    assert len(queue) == 2 and drain(queue) == ["b", "d"]
