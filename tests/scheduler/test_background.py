"""Background requests: they run on what the others leave over. Every plan is also checked by the fake worker."""

import random

import pytest

from engined.config.schema import SchedulingPolicy
from engined.protocol.engine import FinishReason
from tests.scheduler.engine import FakeEngine
from tests.scheduler.test_request_queue import drain, fill, make

POLICIES = pytest.mark.parametrize("policy", ["fcfs", "priority"])


@POLICIES
def test_background_requests_wait_behind_all_others(policy: SchedulingPolicy) -> None:
    requests = make("a", -9, 0.0, background=True), make("b", 0, 1.0), make("c", -9, 2.0, background=True)
    assert drain(fill(policy, *requests, make("d", 9, 3.0))) == ["b", "d", "a", "c"]


@POLICIES
def test_a_seat_is_found_in_the_step_of_arrival(policy: str) -> None:
    engine = FakeEngine(max_num_seqs=3, scheduling_policy=policy)
    for name in "abc":
        engine.add(name, [3], priority=-1, background=True, max_tokens=20)
    engine.step()
    engine.add("chat", [4, 5], max_tokens=2)
    plan = engine.step()
    assert engine.running == ["chat", "a", "b"] and plan.num_scheduled_tokens == {"chat": 2, "a": 1, "b": 1}
    assert plan.removed_request_ids == ["c"]
    engine.run()
    assert {name: record.finished.num_preemptions for name, record in engine.records.items() if record.finished} == {
        "a": 0, "b": 0, "c": 1, "chat": 0,
    }  # fmt: skip


def test_as_many_leave_as_are_needed() -> None:
    engine = FakeEngine(max_num_seqs=4)
    for index in range(6):
        engine.add(f"batch {index}", [index], background=True, max_tokens=9)
    engine.step()
    for index in range(3):
        engine.add(f"chat {index}", [index], max_tokens=3)
    engine.step()
    assert engine.running == ["chat 0", "chat 1", "chat 2", "batch 0"]


def test_blocks_are_found_in_the_step_of_arrival() -> None:
    engine = FakeEngine(num_blocks=12, block_size=4, max_model_len=48, enable_prefix_caching=False)
    engine.add("first", [3] * 12, background=True, max_tokens=9)
    engine.add("last", [4] * 24, background=True, max_tokens=9)
    engine.step()
    engine.add("chat", [5] * 24, max_tokens=2)
    assert engine.step().removed_request_ids == ["last"]
    assert engine.running == ["chat", "first"]
    engine.run()


def test_all_leave_before_a_request_of_the_others_waits() -> None:
    engine = FakeEngine(num_blocks=10, block_size=4, enable_prefix_caching=False)
    engine.add("old chat", [3] * 16, max_tokens=8)
    engine.add("batch", [4] * 4, background=True, max_tokens=8)
    engine.step()
    engine.add("new chat", [5] * 32, max_tokens=1)
    engine.step()
    assert engine.running == ["old chat"]
    engine.run()
    starts = {name: record.started.scheduled_time for name, record in engine.records.items() if record.started}
    assert starts["new chat"] > starts["old chat"]


def test_when_blocks_run_out_background_goes_first_and_others_still_enter() -> None:
    engine = FakeEngine(num_blocks=9, block_size=2, max_model_len=18, enable_prefix_caching=False)
    engine.add("batch", [4] * 6, background=True, max_tokens=8)
    engine.add("chat", [3] * 4, max_tokens=8)
    for _ in range(20):
        engine.step()
        if "batch" not in engine.running:
            break
    assert engine.running == ["chat"]
    engine.run()
    assert engine.records["chat"].finished is not None and engine.records["chat"].finished.num_preemptions == 0


def test_a_long_background_prompt_lends_its_tokens() -> None:
    engine = FakeEngine(num_blocks=100, max_num_batched_tokens=16)
    engine.add("batch", [3] * 100, background=True)
    assert engine.step().num_scheduled_tokens == {"batch": 16}
    engine.add("chat", [4] * 20)
    assert engine.step().num_scheduled_tokens == {"batch": 1, "chat": 15}
    assert engine.step().num_scheduled_tokens == {"chat": 5, "batch": 11}
    assert engine.step().num_scheduled_tokens == {"chat": 1, "batch": 15}
    engine.run()


def test_the_others_run_as_if_there_were_no_background() -> None:
    """Random arrivals with and without a full load of background: each request starts and ends in the same step."""

    def run(with_background: bool) -> dict[str, tuple[float, FinishReason | None, int]]:
        # Tokens for all prompts in one step, because a background request may use one.
        engine = FakeEngine(num_blocks=30, max_num_seqs=5, max_num_batched_tokens=400, enable_prefix_caching=False)
        draw = random.Random(11)
        ends: dict[str, tuple[float, FinishReason | None, int]] = {}
        for step in range(600):
            if step % 4 == 0:
                engine.add(
                    f"chat {step}", draw.choices(range(12), k=draw.randrange(1, 30)), max_tokens=draw.randrange(16)
                )
            if with_background and engine.scheduler.stats().num_waiting < 8:
                engine.add(f"batch {step}", [step % 12] * (step % 20 + 1), background=True, max_tokens=step % 30)
            if engine.scheduler.has_work():
                engine.step()
            else:
                engine.time += 1.0
            for name, record in engine.records.items():
                if name.startswith("chat") and record.finished is not None and name not in ends:
                    assert record.started is not None
                    ends[name] = (engine.time - record.started.scheduled_time, record.finished.reason, step)
        engine.run()
        assert all(record.finished is not None for record in engine.records.values())
        return ends

    alone = run(with_background=False)
    assert len(alone) > 130 and run(with_background=True) == alone


def test_giving_way_does_not_make_it_harder_to_come_back() -> None:
    """Unlike a preemption for want of blocks: it says nothing about how much room there is."""
    engine = FakeEngine(num_blocks=20, max_num_seqs=2)
    engine.add("batch a", [3], background=True, max_tokens=60)
    engine.add("batch b", [4], background=True, max_tokens=60)
    for index in range(12):
        engine.add(f"chat {index}", [5], max_tokens=1)
        engine.step()
        assert engine.running == ["batch a"]  # the chat has ended
        engine.step()
        assert engine.running == ["batch a", "batch b"]
    engine.run()
    finished = engine.records["batch b"].finished
    assert finished is not None and finished.num_preemptions == 12


def test_nobody_leaves_to_keep_blocks_spare_for_himself() -> None:
    """Spare blocks are for those whose victim the newcomer could be, and background requests are victims first."""
    engine = FakeEngine(num_blocks=12, block_size=4, enable_prefix_caching=False)
    for name in "abc":
        engine.add(name, [3], background=True, max_tokens=3)
    engine.step()
    engine.add("chat", [4] * 30, max_tokens=2)
    engine.step()
    assert engine.running == ["chat", "a", "b", "c"]
    engine.run()
