"""Pooled requests: an encoder's prompts run whole or wait, a decoder's in chunks, and each ends with its result."""

import pytest

from engined.cache.kv_cache_manager import KVCacheManager
from engined.cache.sequence_cache import NoCache, SequenceCache
from engined.config.schema import SchedulerConfig
from engined.protocol.engine import EngineCoreOutputs, EngineCoreRequest, FinishReason
from engined.protocol.plan import ModelRunnerOutput, SchedulerOutput
from engined.protocol.pooling import PoolingParams
from engined.protocol.sampling import SamplingParams
from engined.scheduler.request import Request
from engined.scheduler.scheduler import Scheduler


class PoolingScheduler:
    """A scheduler, and a worker that pools a sequence into its length as soon as it is complete."""

    def __init__(self, cache: SequenceCache, budget: int, max_num_seqs: int = 8) -> None:
        config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
        self.scheduler = Scheduler(config, cache, max_model_len=1000, clock=lambda: 0.0)
        self.outputs: list[EngineCoreOutputs] = []
        self._cache = cache
        self._missing: dict[str, int] = {}

    def add(self, request_id: str, num_tokens: int) -> None:
        message = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=[3] * num_tokens,
            sampling=SamplingParams(max_tokens=0),
            arrival_time=0.0,
            pooling=PoolingParams(),
        )
        self.scheduler.add_request(Request(message, 0, self._cache.hasher))

    def step(self, errors: dict[str, str] | None = None) -> SchedulerOutput:
        plan = self.scheduler.schedule()
        for new in plan.new_requests:
            assert new.pooling is not None
            self._missing[new.request_id] = len(new.token_ids) - new.num_computed_tokens
        result = ModelRunnerOutput(errors=errors or {})
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            self._missing[request_id] -= num_tokens
            if self._missing[request_id] == 0:
                result.pooled[request_id] = [1.0, 2.0]
        self.outputs += self.scheduler.update_from_output(plan, result).values()
        return plan


def test_an_encoders_prompts_run_whole_within_the_budget() -> None:
    engine = PoolingScheduler(NoCache(10), budget=10)
    for request_id, num_tokens in (("a", 4), ("b", 6), ("c", 7), ("d", 4), ("e", 3)):
        engine.add(request_id, num_tokens)
    assert engine.step().num_scheduled_tokens == {"a": 4, "b": 6}
    # e would fit beside c, but d does not, and nothing overtakes the first of the queue.
    assert engine.step().num_scheduled_tokens == {"c": 7}
    plan = engine.step()
    assert plan.num_scheduled_tokens == {"d": 4, "e": 3}
    assert plan.removed_request_ids == ["c"]
    assert all(new.block_ids == [] and new.num_computed_tokens == 0 for new in plan.new_requests)
    assert not engine.scheduler.has_work()


def test_the_result_and_the_end_come_in_one_frame() -> None:
    engine = PoolingScheduler(NoCache(10), budget=10)
    engine.add("a", 4)
    engine.step()
    (outputs,) = engine.outputs
    assert outputs.pooled == {"a": [1.0, 2.0]}
    assert outputs.finished["a"].reason is FinishReason.STOP
    assert outputs.started["a"].num_cached_tokens == 0
    assert outputs.request_ids == [] and outputs.new_token_ids == []
    assert outputs.stats is not None
    assert (outputs.stats.num_running, outputs.stats.kv_cache_usage) == (0, 0.0)


def test_a_prompt_that_no_step_can_hold_is_refused_and_holds_nobody_up() -> None:
    engine = PoolingScheduler(NoCache(10), budget=10)
    engine.add("long", 11)
    engine.add("a", 10)
    assert engine.step().num_scheduled_tokens == {"a": 10}
    (outputs,) = engine.outputs
    assert outputs.finished["long"].reason is FinishReason.ERROR
    assert "11 tokens" in (outputs.finished["long"].error or "")
    assert outputs.pooled.keys() == {"a"}


def test_no_more_sequences_in_a_step_than_allowed() -> None:
    engine = PoolingScheduler(NoCache(100), budget=100, max_num_seqs=2)
    for request_id in "abc":
        engine.add(request_id, 5)
    assert [list(engine.step().num_scheduled_tokens) for _ in range(2)] == [["a", "b"], ["c"]]


@pytest.mark.parametrize("is_aborted", [True, False])
def test_one_that_does_not_succeed_has_no_result(is_aborted: bool) -> None:
    engine = PoolingScheduler(NoCache(10), budget=10)
    engine.add("a", 4)
    engine.add("b", 4)
    if is_aborted:
        engine.scheduler.abort_requests(["a"])
        engine.step()
    else:
        engine.step(errors={"a": "not finite"})
    (outputs,) = engine.outputs
    assert outputs.pooled.keys() == {"b"}
    assert outputs.finished["a"].reason is (FinishReason.ABORT if is_aborted else FinishReason.ERROR)


def test_a_decoders_prompt_is_pooled_after_its_last_chunk_and_leaves_its_prefix() -> None:
    engine = PoolingScheduler(KVCacheManager(16, 4, True, b"secret"), budget=8)
    engine.add("a", 18)
    assert [engine.step().num_scheduled_tokens["a"] for _ in range(3)] == [8, 8, 2]
    assert [list(outputs.pooled) for outputs in engine.outputs] == [["a"]]
    engine.add("b", 18)
    assert engine.step().num_scheduled_tokens == {"b": 2}
    assert engine.outputs[-1].started["b"].num_cached_tokens == 16
    assert engine.outputs[-1].pooled.keys() == {"b"}
