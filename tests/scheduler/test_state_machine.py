"""Random lives of many requests in a small cache, checked by a fake worker at every step, and against each alone."""

from itertools import cycle
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engined.scheduler.step_budget import StepBudget
from tests.scheduler.engine import FakeEngine
from tests.scheduler.toy_grammar import FAULTY, TOY, VOCAB_SIZE

PREFIXES = [[5] * 9, [5] * 4 + [6] * 7, [7, 8, 9, 7, 8, 9, 7, 8]]
# Few draws for each request, so that an example holds many requests.
prompts = st.builds(
    lambda prefix, length, rest: prefix[:length] + [byte % VOCAB_SIZE for byte in rest],
    st.sampled_from(PREFIXES),
    st.integers(0, 11),
    st.binary(min_size=1, max_size=6),
)
samplings = st.builds(
    lambda kind, max_tokens: {**kind, "max_tokens": max_tokens, "min_tokens": min(kind["min_tokens"], max_tokens)},
    st.sampled_from(
        [
            {"min_tokens": 0},
            {"min_tokens": 0, "seed": 1, "logprobs": 0},
            {"min_tokens": 0, "prompt_logprobs": 1},
            {"min_tokens": 0, "eos_token_ids": (0, 1), "stop_token_ids": (1, 2)},
            {"min_tokens": 5, "eos_token_ids": (0,), "stop_token_ids": (1, 2), "logprobs": 0},
            {"min_tokens": 2, "eos_token_ids": (0, 1), "ignore_eos": True, "stop_token_ids": (1,)},
        ]
    ),
    st.sampled_from([14, 20, 7, 3, 1, 0]),
)
REQUEST = {
    "prompt": prompts,
    "client": st.integers(0, 2),
    "priority": st.integers(0, 2),
    "background": st.sampled_from([False, False, True]),
    "salt": st.sampled_from([None, None, None, "pepper"]),
    "grammar": st.sampled_from([None, None, TOY, TOY, FAULTY]),
    "sampling": samplings,
}


class AnyBudget(StepBudget):
    """Lets in as many tokens beside those that run as were drawn, in turn: what is learned may be anything."""

    def __init__(self, nums_prompt_tokens: list[int]) -> None:
        super().__init__(None)
        self._nums_prompt_tokens = cycle(nums_prompt_tokens)

    def num_tokens(self, num_running: int, prompts_per_stream: float, context: int) -> int:
        return num_running + next(self._nums_prompt_tokens)


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, aborts, errors and steps in any order."""

    @initialize(
        config=st.fixed_dictionaries(
            {
                "num_blocks": st.sampled_from([8, 10, 7, 16]),
                "block_size": st.sampled_from([3, 4, 2]),
                "max_model_len": st.integers(18, 60),
                "enable_prefix_caching": st.sampled_from([True, True, False]),
                "max_num_seqs": st.sampled_from([8, 5, 3, 1]),
                "max_num_batched_tokens": st.sampled_from([24, 12, 7, 3, 1]),
                "long_prefill_token_threshold": st.sampled_from([0, 0, 1, 3]),
                "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
            }
        ),
        budgets=st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=4),
    )
    def start(self, config: dict[str, Any], budgets: list[int] | None) -> None:
        self.engine = FakeEngine(**config)
        if budgets is not None:
            self.engine.scheduler._planner._budget = AnyBudget(budgets)
        self.config = config
        self.num_added = 0

    @property
    def live(self) -> list[str]:
        return list(self.engine.scheduler._roster.requests)

    @rule(requests=st.lists(st.fixed_dictionaries(REQUEST), min_size=1, max_size=6))
    def add(self, requests: list[dict[str, Any]]) -> None:
        for request in requests:
            if request["client"] not in self.engine.gone_clients:
                self.num_added += 1
                sampling = request.pop("sampling")
                self.engine.add(f"r{self.num_added}", **request, **sampling)

    @rule(num_steps=st.integers(1, 8))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.engine.scheduler.has_work():
                self.engine.step()
                self.every_block_is_accounted_for()
        self.engine.receive(self.engine.scheduler.take_pending_outputs())

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def step_with_aborts_in_flight(self, data: st.DataObject) -> None:
        victims = data.draw(st.lists(st.sampled_from(self.live), min_size=1, max_size=2))
        self.engine.step(in_flight=lambda: self.engine.scheduler.abort_requests(victims))

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def step_with_errors(self, data: st.DataObject) -> None:
        victims = data.draw(st.lists(st.sampled_from(self.engine.running), min_size=1, max_size=2, unique=True))
        self.engine.step(errors=dict.fromkeys(victims, "logits are not finite"))

    @rule(data=st.data())
    def abort_any_twice(self, data: st.DataObject) -> None:
        request_ids = data.draw(st.lists(st.sampled_from(["unknown", *self.engine.records]), max_size=3))
        self.engine.scheduler.abort_requests(request_ids + request_ids)

    @rule(event=st.sampled_from(["lose client 1", "lose client 2", "fail all", "reset prefix cache"]))
    def rare_event(self, event: str) -> None:
        if event == "fail all":
            self.engine.scheduler.fail_all("the executor failed")
        elif event == "reset prefix cache":
            self.engine.cache.reset_prefix_cache()
        else:
            client = int(event[-1])
            self.engine.scheduler.abort_client(client)
            self.engine.gone_clients.add(client)

    @rule()
    def drain(self) -> None:
        """Nothing starves: without new requests everything ends, within the bound that the scheduler promises."""
        engine = self.engine
        in_order = sorted(engine.scheduler._roster.requests.values(), key=lambda request: request.sort_key)
        num_steps = 0
        deadlines = {}
        for request in in_order:
            num_steps += request.num_prompt_tokens + request.sampling.max_tokens
            deadlines[request.request_id] = num_steps
        num_preemptions = engine.scheduler.stats().num_preemptions
        for step in range(1, 10_000):
            if not engine.scheduler.has_work():
                break
            engine.step()
            if self.config["scheduling_policy"] == "fcfs":
                assert all(step < deadlines[request_id] for request_id in self.live)
        engine.receive(engine.scheduler.take_pending_outputs())
        assert not self.live
        num_restarts = engine.scheduler.stats().num_preemptions - num_preemptions
        longest = max((request.max_num_tokens for request in in_order), default=0)
        assert step <= num_steps + num_restarts * longest + 1
        for request_id, record in engine.records.items():
            assert record.finished is not None or record.client_index in engine.gone_clients, request_id
        assert engine.scheduler.stats().kv_cache_usage == 0.0

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        pool = self.engine.cache._pool
        tables = [request.block_table for request in self.engine.scheduler._roster.requests.values()]
        held = [block_id for table in tables if table is not None for block_id in table.block_ids]
        free = list(pool.free_block_ids())
        assert len(free) == len(set(free)) == pool.num_free
        assert pool.num_free + len(set(held)) == pool.num_blocks and not set(free) & set(held)
        for block_id in range(pool.num_blocks):
            assert pool.reference_count(block_id) == held.count(block_id)

    @invariant()
    def running_and_waiting_are_what_they_should_be(self) -> None:
        scheduler = self.engine.scheduler
        stats = scheduler.stats()
        assert stats.num_running + stats.num_waiting == len(self.live)
        assert stats.num_running <= self.config["max_num_seqs"]
        for request in scheduler._roster.waiting._requests:
            assert request.num_computed_tokens == 0 and request.block_table is None
        keys = [request.sort_key for request in scheduler._roster.running]
        assert keys == sorted(keys)
        if self.config["scheduling_policy"] == "fcfs":
            most = self.config["num_blocks"].bit_length()
            others = [request for request in scheduler._roster.requests.values() if not request.is_background]
            assert all(request.num_preemptions <= most for request in others)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.drain()


TestSchedulerMachine = SchedulerMachine.TestCase
# Without the explain phase, which traces every line and takes minutes here.
TestSchedulerMachine.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
