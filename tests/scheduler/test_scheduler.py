"""What the scheduler does in each situation. Every plan is also checked by the fake worker (see engine.py)."""

import math
import random

import pytest

from engined.protocol.engine import EngineCoreRequest, FinishReason
from engined.protocol.plan import ModelRunnerOutput
from engined.protocol.sampling import SamplingParams
from engined.scheduler.request import Request
from tests.scheduler.engine import FakeEngine


def reason(engine: FakeEngine, request_id: str) -> FinishReason | None:
    finished = engine.records[request_id].finished
    return None if finished is None else finished.reason


def test_a_request_is_sent_whole_once_and_then_by_differences() -> None:
    engine = FakeEngine()
    engine.add("a", [3, 4, 5], max_tokens=4)
    first, second, third = (engine.step() for _ in range(3))
    assert [data.request_id for data in first.new_requests] == ["a"]
    assert first.new_requests[0].num_prompt_tokens == 3 and len(first.new_requests[0].block_ids) == 1
    assert first.num_scheduled_tokens == {"a": 3} and first.new_block_ids == {}
    assert second.new_requests == [] and second.num_scheduled_tokens == {"a": 1} and second.new_block_ids == {}
    assert len(third.new_block_ids["a"]) == 1
    assert [first.step_id, second.step_id, third.step_id] == [1, 2, 3]


def test_a_plan_shares_no_list_with_the_scheduler() -> None:
    engine = FakeEngine()
    request = engine.add("a", [3, 4, 5])
    (data,) = engine.step().new_requests
    assert data.token_ids == [3, 4, 5] and len(request.token_ids) == 4
    engine.run()
    assert len(data.block_ids) == 1


def test_a_finished_request_is_removed_by_the_next_plan() -> None:
    engine = FakeEngine()
    engine.add("a", [3], max_tokens=1)
    engine.add("b", [3], max_tokens=3)
    assert engine.step().removed_request_ids == []
    assert engine.step().removed_request_ids == ["a"]
    assert engine.step().removed_request_ids == []


def test_a_long_prompt_is_computed_in_chunks_within_the_budget() -> None:
    engine = FakeEngine(max_num_batched_tokens=4)
    engine.add("a", list(range(10)))
    assert [engine.step().num_scheduled_tokens["a"] for _ in range(4)] == [4, 4, 2, 1]


def test_the_threshold_caps_the_share_of_one_prompt() -> None:
    engine = FakeEngine(max_num_batched_tokens=10, long_prefill_token_threshold=3)
    engine.add("a", list(range(7)))
    engine.add("b", [5] * 7)
    assert engine.step().num_scheduled_tokens == {"a": 3, "b": 3}
    assert engine.step().num_scheduled_tokens == {"a": 3, "b": 3}
    assert engine.step().num_scheduled_tokens == {"a": 1, "b": 1}


def test_running_streams_skip_no_step_while_a_huge_prompt_comes_in() -> None:
    engine = FakeEngine(max_num_batched_tokens=16, num_blocks=200, max_model_len=800)
    for index in range(8):
        engine.add(f"stream {index}", [index], max_tokens=60)
    engine.step()
    engine.add("huge", [3] * (20 * 16))
    while engine.records["huge"].started is None:
        scheduled = engine.step().num_scheduled_tokens
        assert all(scheduled[f"stream {index}"] == 1 for index in range(8))
        assert scheduled["huge"] == min(8, 320)


def test_a_better_prompt_in_front_leaves_a_token_for_each_stream_behind() -> None:
    engine = FakeEngine(max_num_batched_tokens=8, scheduling_policy="priority")
    for index in range(4):
        engine.add(f"stream {index}", [index], priority=1, max_tokens=30)
    engine.step()
    engine.add("better", [3] * 20, priority=0)
    assert [engine.step().num_scheduled_tokens["better"] for _ in range(5)] == [4] * 5
    assert engine.running[0] == "better"


def test_no_more_than_max_num_seqs_run() -> None:
    engine = FakeEngine(max_num_seqs=2)
    for name in "abc":
        engine.add(name, [3], max_tokens=2)
    engine.step()
    assert engine.running == ["a", "b"] and engine.scheduler.stats().num_waiting == 1
    engine.run()
    assert all(reason(engine, name) is FinishReason.LENGTH for name in "abc")


def test_the_first_in_the_queue_is_not_overtaken() -> None:
    engine = FakeEngine(num_blocks=8, enable_prefix_caching=False)
    engine.add("a", [3] * 20, max_tokens=3)
    engine.step()
    engine.add("big", [4] * 20, max_tokens=1)
    engine.add("small", [5], max_tokens=1)
    engine.step()
    assert engine.running == ["a"]
    engine.run()
    starts = {name: record.started.scheduled_time for name, record in engine.records.items() if record.started}
    assert starts["a"] < starts["big"] <= starts["small"]


def test_a_large_request_gets_in_under_an_endless_stream_of_small_ones() -> None:
    engine = FakeEngine(num_blocks=10)
    for index in range(40):
        engine.add(f"small {index}", [index % 12], max_tokens=8)
        if index == 4:
            engine.add("large", [3] * 30, max_tokens=2)
        engine.step()
    assert reason(engine, "large") is FinishReason.LENGTH
    engine.run()
    assert all(record.finished is not None for record in engine.records.values())


def test_a_prompt_that_can_never_fit_ends_at_once_and_names_both_numbers() -> None:
    engine = FakeEngine(num_blocks=2, block_size=4)
    too_long = engine.add("a", [3] * 8, max_tokens=1)
    engine.add("b", [3] * 9, max_tokens=0)
    fits = engine.add("c", [3] * 8, max_tokens=0)
    engine.add("d", [3] * 7, max_tokens=5)
    assert engine.scheduler.can_ever_fit(fits) and not engine.scheduler.can_ever_fit(too_long)
    engine.run()
    for name, length in (("a", 8), ("b", 9)):
        finished = engine.records[name].finished
        assert finished is not None and finished.reason is FinishReason.ERROR
        assert f"{length} tokens" in str(finished.error) and "8 tokens by the KV cache" in str(finished.error)
    assert reason(engine, "c") is FinishReason.LENGTH
    assert reason(engine, "d") is FinishReason.LENGTH and len(engine.records["d"].token_ids) == 1


def test_output_ends_with_length_where_the_context_or_the_cache_ends() -> None:
    by_context = FakeEngine(max_model_len=10)
    by_context.add("a", [3] * 6, max_tokens=100)
    by_context.run()
    assert len(by_context.records["a"].token_ids) == 4
    by_cache = FakeEngine(num_blocks=3, block_size=4)
    by_cache.add("a", [3] * 6, max_tokens=100)
    by_cache.add("b", [4] * 6, max_tokens=100)
    by_cache.run()
    assert [len(by_cache.records[name].token_ids) for name in "ab"] == [6, 6]


def test_preemption_takes_the_last_and_starts_it_again_with_all_its_tokens() -> None:
    engine = FakeEngine(num_blocks=6, block_size=2, max_model_len=12)
    engine.add("a", [3, 4], max_tokens=8)
    engine.add("b", [5, 6], max_tokens=8)
    plans = []
    while engine.scheduler.has_work():
        plans.append(engine.step())
    preempting = [plan for plan in plans if "b" in plan.removed_request_ids and "b" not in plan.num_scheduled_tokens]
    again = [plan.new_requests[0] for plan in plans[1:] if plan.new_requests]
    assert len(preempting) == len(again) == 1
    assert again[0].request_id == "b" and again[0].num_prompt_tokens == 2
    assert len(again[0].token_ids) > 3 and again[0].token_ids[:2] == [5, 6]
    record = engine.records["b"]
    assert record.finished is not None and record.finished.num_preemptions == 1
    assert engine.scheduler.stats().num_preemptions == 1


def test_a_preempted_request_reuses_what_is_left_of_its_blocks() -> None:
    engine = FakeEngine(num_blocks=10, block_size=2, max_model_len=20)
    engine.add("a", [3, 4], max_tokens=12)
    engine.add("b", [5, 6, 7, 8, 9], max_tokens=12)
    again = []
    while engine.scheduler.has_work():
        again += [data for data in engine.step().new_requests if len(data.token_ids) > data.num_prompt_tokens]
    assert again and all(data.num_computed_tokens > 0 for data in again)
    assert engine.records["b"].started is not None and engine.records["b"].started.num_cached_tokens == 0


def test_under_priority_the_worst_request_is_the_victim() -> None:
    engine = FakeEngine(num_blocks=6, block_size=2, max_model_len=12, scheduling_policy="priority")
    engine.add("worse", [3, 4], priority=2, max_tokens=8)
    engine.add("better", [5, 6], priority=1, max_tokens=8)
    engine.run()
    finished = {name: record.finished for name, record in engine.records.items()}
    assert finished["worse"] is not None and finished["worse"].num_preemptions > 0
    assert finished["better"] is not None and finished["better"].num_preemptions == 0


def test_a_better_waiting_request_displaces_nobody() -> None:
    engine = FakeEngine(max_num_seqs=1, scheduling_policy="priority")
    engine.add("running", [3], priority=9, max_tokens=3)
    engine.step()
    engine.add("waiting", [4], priority=5, max_tokens=1)
    engine.add("better", [5], priority=1, max_tokens=1)
    engine.run()
    ends = sorted(engine.records, key=lambda name: engine.records[name].started.scheduled_time)  # type: ignore[union-attr]
    assert ends == ["running", "better", "waiting"]
    assert engine.scheduler.stats().num_preemptions == 0


def test_sixteen_requests_with_room_for_four() -> None:
    engine = FakeEngine(num_blocks=4 * 6, block_size=16, max_model_len=96)
    draw = random.Random(4)
    for index in range(16):
        engine.add(f"r{index}", draw.choices(range(12), k=32), max_tokens=64)
    engine.run()
    num_preemptions = [record.finished.num_preemptions for record in engine.records.values() if record.finished]
    assert len(num_preemptions) == 16 and sum(num_preemptions) > 0 and max(num_preemptions) <= 1


def test_whoever_was_preempted_waits_for_twice_the_room_so_nobody_is_preempted_for_ever() -> None:
    engine = FakeEngine(num_blocks=48, block_size=2, max_model_len=96)
    draw = random.Random(4)
    for index in range(24):
        engine.add(f"r{index}", draw.choices(range(12), k=4), max_tokens=60)
    engine.run()
    num_preemptions = [record.finished.num_preemptions for record in engine.records.values() if record.finished]
    assert len(num_preemptions) == 24 and 1 < max(num_preemptions) <= 5 < math.log2(48)  # 7 without that rule


def test_a_prompt_in_the_cache_is_not_computed_again() -> None:
    engine = FakeEngine(block_size=4)
    engine.add("a", list(range(10)), max_tokens=1)
    engine.run()
    engine.add("b", list(range(10)), max_tokens=1)
    assert engine.step().num_scheduled_tokens == {"b": 2}
    started = engine.records["b"].started
    assert started is not None and started.num_cached_tokens == 8
    stats = engine.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (20, 8)


def test_prompts_that_begin_alike_and_come_at_once_share_what_one_step_computes() -> None:
    engine = FakeEngine(block_size=4, max_num_batched_tokens=64)
    for index in range(3):
        engine.add(f"agent {index}", [*range(20), 50 + index], max_tokens=3)
    plan = engine.step()
    assert plan.num_scheduled_tokens == {"agent 0": 21, "agent 1": 1, "agent 2": 1}
    blocks = [data.block_ids for data in plan.new_requests]
    assert blocks[0][:5] == blocks[1][:5] == blocks[2][:5]
    engine.run()


def test_of_a_prompt_that_comes_in_by_chunks_others_share_what_was_planned() -> None:
    engine = FakeEngine(block_size=4, max_num_batched_tokens=10)
    for index in range(2):
        engine.add(f"agent {index}", [*range(20), 50 + index], max_tokens=3)
    assert engine.step().num_scheduled_tokens == {"agent 0": 10}
    assert engine.step().num_scheduled_tokens == {"agent 0": 10}
    assert engine.step().num_scheduled_tokens == {"agent 0": 1, "agent 1": 1}
    engine.run()


@pytest.mark.parametrize("ending", ["abort", "error"])
def test_who_shares_what_a_step_computes_does_not_need_its_first_holder(ending: str) -> None:
    engine = FakeEngine(block_size=4)
    engine.add("first", [*range(20), 50], max_tokens=3)
    engine.add("second", [*range(20), 51], max_tokens=3)
    if ending == "abort":
        engine.step(in_flight=lambda: engine.scheduler.abort_requests(["first"]))
    else:
        engine.step(errors={"first": "its logits are not finite"})
    engine.add("third", [*range(20), 52], max_tokens=3)
    engine.run()
    assert reason(engine, "second") is reason(engine, "third") is FinishReason.LENGTH


def test_nobody_counts_on_a_background_request_that_loses_its_place_in_the_same_step() -> None:
    engine = FakeEngine(block_size=4, max_num_seqs=1, max_num_batched_tokens=7)
    engine.add("batch", [*range(20), 50], max_tokens=3, background=True)
    engine.step()
    engine.add("chat", [*range(20), 51], max_tokens=3)  # the batch gets its eighth token, and then makes room
    plan = engine.step()
    assert plan.removed_request_ids == ["batch"] and plan.new_requests[0].num_computed_tokens == 4
    engine.run()


def test_a_conversation_finds_the_answer_before_in_the_cache() -> None:
    engine = FakeEngine(block_size=4, num_blocks=100)
    engine.add("a", [3] * 6, max_tokens=60)
    engine.run()
    engine.add("b", [3] * 6 + engine.records["a"].token_ids + [5], max_tokens=1)
    engine.run()
    started = engine.records["b"].started
    assert started is not None and started.num_cached_tokens == 64


def test_prompt_logprobs_arrive_chunk_by_chunk_and_read_no_cache() -> None:
    engine = FakeEngine(max_num_batched_tokens=4)
    engine.add("a", list(range(10)), max_tokens=1)
    engine.run()
    engine.add("b", list(range(10)), max_tokens=1, prompt_logprobs=0)
    counts = []
    while engine.scheduler.has_work():
        engine.step()
        counts.append(len(engine.records["b"].prompt_logprobs))
    assert counts == [4, 8, 9]
    assert engine.scheduler.stats().prefix_cache_queries == 10


def test_prompt_logprobs_are_not_sent_twice_after_a_preemption() -> None:
    engine = FakeEngine(num_blocks=6, block_size=2, max_model_len=12)
    engine.add("a", [3, 4], max_tokens=8)
    engine.add("b", [5, 6, 7], max_tokens=8, prompt_logprobs=0)
    engine.run()
    record = engine.records["b"]
    assert record.finished is not None and record.finished.num_preemptions > 0
    assert len(record.prompt_logprobs) == 2


def test_max_tokens_zero_scores_the_prompt_and_generates_nothing() -> None:
    engine = FakeEngine(max_num_batched_tokens=4)
    engine.add("a", list(range(6)), max_tokens=0, prompt_logprobs=0, logprobs=0)
    assert engine.run() == 2
    record = engine.records["a"]
    assert reason(engine, "a") is FinishReason.LENGTH and record.token_ids == [] and len(record.prompt_logprobs) == 5


def test_max_tokens_zero_needs_no_sample() -> None:
    engine = FakeEngine()
    engine.add("a", [3, 4], max_tokens=0)
    plan = engine.scheduler.schedule()
    engine.receive(engine.scheduler.update_from_output(plan, ModelRunnerOutput()))
    assert reason(engine, "a") is FinishReason.LENGTH


@pytest.mark.parametrize("num_steps_before", [0, 1, 3])
def test_abort_frees_at_once_and_tells_the_client(num_steps_before: int) -> None:
    engine = FakeEngine(max_num_batched_tokens=4)
    engine.add("a", list(range(8)), max_tokens=9)
    for _ in range(num_steps_before):
        engine.step()
    engine.scheduler.abort_requests(["a", "unknown", "a"])
    assert engine.scheduler.stats().kv_cache_usage == 0.0 and not engine.scheduler.has_work()
    engine.receive(engine.scheduler.take_pending_outputs())
    assert reason(engine, "a") is FinishReason.ABORT
    assert (engine.records["a"].started is not None) == (num_steps_before > 0)
    assert engine.scheduler.take_pending_outputs() == {}


def test_the_result_of_a_request_that_was_aborted_in_flight_is_dropped() -> None:
    engine = FakeEngine()
    engine.add("a", [3], max_tokens=9)
    engine.add("b", [4], max_tokens=9)
    engine.step(in_flight=lambda: engine.scheduler.abort_requests(["a"]))
    assert engine.records["a"].token_ids == [] and reason(engine, "a") is FinishReason.ABORT
    assert len(engine.records["b"].token_ids) == 1
    assert engine.step().removed_request_ids == ["a"]


def test_a_client_that_is_gone_takes_its_requests_with_it() -> None:
    engine = FakeEngine(max_num_seqs=2)
    for index in range(4):
        engine.add(f"r{index}", [3], client=index % 2, max_tokens=3)
    engine.step()
    engine.scheduler.abort_requests(["r3"])
    engine.scheduler.abort_client(1)
    engine.gone_clients.add(1)
    engine.run()
    assert reason(engine, "r0") is reason(engine, "r2") is FinishReason.LENGTH
    assert engine.records["r1"].finished is None


def test_an_error_ends_one_request_and_leaves_the_others() -> None:
    engine = FakeEngine()
    engine.add("a", [3] * 9)
    engine.add("b", [4] * 9)
    engine.step()
    engine.step(errors={"a": "logits are not finite", "unknown": "?"})
    finished = engine.records["a"].finished
    assert finished is not None and (finished.reason, finished.error) == (FinishReason.ERROR, "logits are not finite")
    engine.add("again", [3] * 9)
    assert engine.step().num_scheduled_tokens["again"] == 9
    engine.run()
    assert reason(engine, "b") is reason(engine, "again") is FinishReason.LENGTH


def test_a_worker_that_samples_nothing_fails_the_request_instead_of_hanging_it() -> None:
    engine = FakeEngine()
    engine.add("a", [3])
    plan = engine.scheduler.schedule()
    engine.receive(engine.scheduler.update_from_output(plan, ModelRunnerOutput()))
    assert reason(engine, "a") is FinishReason.ERROR and not engine.scheduler.has_work()


def test_fail_all_tells_every_client_the_cause() -> None:
    engine = FakeEngine(max_num_seqs=1)
    engine.add("a", [3])
    engine.add("b", [3], client=1)
    engine.step()
    engine.scheduler.fail_all("rank 1 died")
    engine.receive(engine.scheduler.take_pending_outputs())
    for name in "ab":
        finished = engine.records[name].finished
        assert finished is not None and finished.error == "rank 1 died"


def test_an_id_used_twice_harms_nobody_else() -> None:
    engine = FakeEngine()
    engine.add("other", [3])
    first = engine.add("twice", [3], client=1)
    again = EngineCoreRequest(
        request_id="twice", prompt_token_ids=[4], sampling=SamplingParams(max_tokens=1), arrival_time=0.0
    )
    engine.scheduler.add_request(Request(again, 2, None))
    outputs = engine.scheduler.take_pending_outputs()
    assert {client: list(output.finished) for client, output in outputs.items()} == {1: ["twice"], 2: ["twice"]}
    assert (
        "twice" in str(outputs[1].finished["twice"].error) and first.request_id not in engine.scheduler._roster.requests
    )
    engine.run()
    assert reason(engine, "other") is FinishReason.LENGTH


def test_tokens_after_a_stop_are_cut() -> None:
    engine = FakeEngine()
    engine.add("a", [3], max_tokens=9, stop_token_ids=(7,))
    plan = engine.scheduler.schedule()
    result = ModelRunnerOutput(request_ids=["a"], sampled_token_ids=[[5, 7, 5]])
    (outputs,) = engine.scheduler.update_from_output(plan, result).values()
    assert outputs.new_token_ids == [[5, 7]] and outputs.finished["a"].stop_token_id == 7


def test_steps_repeat_until_somebody_changes() -> None:
    engine = FakeEngine(block_size=4)
    for name, max_tokens in (("a", 30), ("b", 12)):
        engine.add(name, [3], max_tokens=max_tokens)
    plans = [engine.step() for _ in range(30)]
    repeats = [plan.is_repeat for plan in plans]
    # One step to begin, two to see that nothing changes; the same after the end of b, which is no repeat itself.
    assert repeats == [False] * 3 + [True] * 8 + [False] * 3 + [True] * 15 + [False]
    assert any(plan.is_repeat and plan.new_block_ids for plan in plans)
    assert not engine.scheduler.has_work()


def test_an_abort_in_flight_ends_the_repetition() -> None:
    engine = FakeEngine()
    engine.add("a", [3], max_tokens=30)
    engine.add("b", [3], max_tokens=30)
    for _ in range(6):
        plan = engine.step()
    assert plan.is_repeat
    assert engine.step(in_flight=lambda: engine.scheduler.abort_requests(["a"])).is_repeat
    plan = engine.step()
    assert not plan.is_repeat and plan.num_scheduled_tokens == {"b": 1} and plan.removed_request_ids == ["a"]
    engine.run()
    assert reason(engine, "b") is FinishReason.LENGTH


def test_statistics_describe_the_state_after_the_step() -> None:
    engine = FakeEngine(num_blocks=10, block_size=4, max_num_seqs=1)
    engine.add("a", [3] * 5)
    engine.add("b", [3] * 5)
    plan = engine.scheduler.schedule()
    (outputs,) = engine.scheduler.update_from_output(plan, engine.worker.execute(plan)).values()
    assert outputs.stats == engine.scheduler.stats()
    assert (outputs.stats.num_running, outputs.stats.num_waiting) == (1, 1)
    assert outputs.stats.kv_cache_usage == pytest.approx(0.2)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_ten_thousand_steps_under_pressure(policy: str) -> None:
    engine = FakeEngine(
        num_blocks=40,
        block_size=4,
        max_model_len=60,
        max_num_seqs=12,
        max_num_batched_tokens=24,
        scheduling_policy=policy,
    )
    draw = random.Random(policy)
    prefixes = [draw.choices(range(12), k=20) for _ in range(4)]
    for step in range(10_000):
        if engine.scheduler.stats().num_waiting < 6:
            prompt = draw.choice(prefixes)[: draw.randrange(20)] + draw.choices(range(12), k=draw.randrange(1, 12))
            max_tokens, seed = draw.randrange(0, 40), draw.randrange(1000)
            engine.add(f"r{step}", prompt, priority=draw.randrange(3), max_tokens=max_tokens, seed=seed)
        if draw.random() < 0.02:
            engine.scheduler.abort_requests([draw.choice(list(engine.records))])
        if engine.scheduler.has_work():
            engine.step()
    engine.run()
    stats = engine.scheduler.stats()
    assert all(record.finished is not None for record in engine.records.values())
    assert stats.num_preemptions > 100 and stats.prefix_cache_hits > 1000 and stats.kv_cache_usage == 0.0
    assert engine.worker.requests.keys() <= {*engine.scheduler._roster._removed_request_ids}
