"""The time of steps is learned, and turned into tokens: on made-up machines whose steps take what a formula says."""

import pytest

from engined.scheduler.step_budget import MIN_PROMPT_TOKENS, TILE_ROWS, StepBudget
from engined.scheduler.step_time import StepSize, StepTimeModel
from tests.scheduler.engine import FakeEngine

NUM_STREAMS = 8


def seconds_of(size: StepSize, scale: float = 1.0) -> float:
    """A machine that reads weights for 12 ms and computes a token in 0.2 ms, more with a long context."""
    return scale * (0.012 + 5e-5 * size.num_requests + 2e-4 * size.num_more_tokens + 1e-7 * size.num_pairs)


def prompt_step(num_tokens: int, context: int) -> StepSize:
    return StepSize(NUM_STREAMS + 1, num_tokens - 1, num_tokens * (context + num_tokens // 2))


def run_prompt(budget: StepBudget, scale: float = 1.0, length: int = 2000) -> list[float]:
    """Let a prompt come in beside streams, as the planner does; the seconds of its steps."""
    seconds, context = [], 0
    while context < length:
        num_tokens = min(budget.num_tokens(NUM_STREAMS + 1, 1 / NUM_STREAMS, context) - NUM_STREAMS, length - context)
        seconds.append(seconds_of(prompt_step(num_tokens, context), scale))
        budget.times.observe(prompt_step(num_tokens, context), seconds[-1])
        context += num_tokens
    return seconds


def run_streams(budget: StepBudget, num_steps: int, scale: float = 1.0) -> None:
    for _ in range(num_steps):
        budget.times.observe(StepSize(NUM_STREAMS), seconds_of(StepSize(NUM_STREAMS), scale))


@pytest.mark.parametrize("scale", [0.2, 1.0, 30.0])
def test_steps_come_to_take_what_they_may(scale: float) -> None:
    budget = StepBudget(40.0 * scale)
    for _ in range(8):
        run_streams(budget, 50, scale)
        seconds = run_prompt(budget, scale)
    assert max(seconds) < 1.1 * 0.040 * scale
    assert sorted(seconds)[len(seconds) // 2] > 0.7 * 0.040 * scale  # a tile less than it could be, at most


@pytest.mark.parametrize(("scale", "expected"), [(0.1, 0.05), (0.5, 0.05), (9.0, 5 * 9 * 0.0124)])
def test_by_default_a_step_may_be_unnoticed_or_five_times_as_long(scale: float, expected: float) -> None:
    budget = StepBudget(None)
    for _ in range(8):
        run_streams(budget, 50, scale)
        seconds = run_prompt(budget, scale)
    assert 0.65 < sorted(seconds)[len(seconds) // 2] / expected < 1.1


def test_the_more_prompts_wait_for_each_stream_the_longer_a_step_may_be() -> None:
    budget = StepBudget(None)
    for _ in range(8):
        run_streams(budget, 50, 3.0)
        run_prompt(budget, 3.0)
    few, many, most = (budget.num_tokens(NUM_STREAMS, ratio, 0) - NUM_STREAMS for ratio in (1.0, 2.0, 8.0))
    assert many == pytest.approx(2 * few, rel=0.3)
    assert most == pytest.approx(8 * few, rel=0.3)
    limited = StepBudget(40.0)
    assert limited.num_tokens(NUM_STREAMS, 8.0, 0) == limited.num_tokens(NUM_STREAMS, 0.0, 0)


def test_the_terms_are_told_apart() -> None:
    model = StepTimeModel()
    for number in range(4000):
        size = prompt_step(1 + number * 37 % 400, number * 101 % 3000)
        model.observe(size, seconds_of(size))
        model.observe(StepSize(1 + number % 30), seconds_of(StepSize(1 + number % 30)))
    assert model.base_seconds(20) == pytest.approx(0.013, rel=0.05)
    assert model.seconds_per_token(0) == pytest.approx(2e-4, rel=0.05)
    assert model.seconds_per_token(2000) == pytest.approx(4e-4, rel=0.05)


def test_one_step_that_was_held_up_changes_little() -> None:
    budget = StepBudget(40.0)
    for _ in range(4):
        run_streams(budget, 50)
        run_prompt(budget)
    before = budget.num_tokens(NUM_STREAMS, 0.0, 500)
    budget.times.observe(prompt_step(64, 500), 100 * seconds_of(prompt_step(64, 500)))
    assert budget.num_tokens(NUM_STREAMS, 0.0, 500) >= before / 2
    run_streams(budget, 20)
    run_prompt(budget)
    assert budget.num_tokens(NUM_STREAMS, 0.0, 500) >= before - TILE_ROWS


@pytest.mark.parametrize("num_running", [1, 8, 16, 17, 100])
def test_prompts_advance_however_little_time_there_is(num_running: int) -> None:
    budget = StepBudget(0.001)
    for _ in range(100):
        budget.times.observe(StepSize(num_running, 16), 3600.0)
    most = num_running + MIN_PROMPT_TOKENS + TILE_ROWS
    assert num_running + MIN_PROMPT_TOKENS <= budget.num_tokens(num_running, 0.0, 100_000) < most


def test_steps_that_take_no_time_leave_every_number_finite() -> None:
    budget = StepBudget(40.0)
    for _ in range(1000):
        budget.times.observe(prompt_step(64, 500), 0.0)
    assert budget.num_tokens(NUM_STREAMS, 0.0, 500) > 10_000
    assert budget.times.base_seconds(NUM_STREAMS) >= 0.0


def shares_of_a_long_prompt(engine: FakeEngine, background: bool = False) -> list[int]:
    """Tokens of a prompt of 1000 in each step; a step takes a second, and eight streams run beside it."""

    def compute() -> None:
        engine.time += 1.0

    for index in range(NUM_STREAMS):
        engine.add(f"stream {index}", [index], max_tokens=100, background=background)
    for _ in range(10):
        engine.step(in_flight=compute)
    engine.add("long", [3] * 1000, max_tokens=1, background=background)
    shares = []
    while sum(shares) < 1000:
        scheduled = engine.step(in_flight=compute).num_scheduled_tokens
        assert all(scheduled[f"stream {index}"] == 1 for index in range(NUM_STREAMS))
        shares.append(scheduled["long"])
    return shares


def test_beside_streams_a_prompt_comes_in_by_pieces() -> None:
    engine = FakeEngine(num_blocks=600, max_model_len=2000, max_num_batched_tokens=512, max_step_ms=0.001)
    assert shares_of_a_long_prompt(engine) == [24] * 41 + [16]
    assert engine.scheduler.stats().max_step_tokens == TILE_ROWS


class SeenBudget(StepBudget):
    """Keeps the ratio that it was asked with last."""

    prompts_per_stream: float | None = None

    def num_tokens(self, num_running: int, prompts_per_stream: float, context: int) -> int:
        self.prompts_per_stream = prompts_per_stream
        return num_running + 10


def test_the_ratio_counts_who_could_be_computed_and_who_would_wait() -> None:
    engine = FakeEngine(num_blocks=600, max_model_len=2000, max_num_batched_tokens=512, max_num_seqs=8)
    budget = engine.scheduler._planner._budget = SeenBudget(None)

    def ratio() -> float | None:
        budget.prompts_per_stream = None
        engine.step()
        return budget.prompts_per_stream

    for index in range(2):
        engine.add(f"stream {index}", [index], max_tokens=100)
    engine.add("batch stream", [2], max_tokens=100, background=True)
    for _ in range(3):
        engine.step()
    assert ratio() is None, "nobody waits"
    engine.add("batch", [3] * 1000, max_tokens=1, background=True)
    assert ratio() == 0.0
    for index in range(4):
        engine.add(f"prompt {index}", [4 + index] * 100, max_tokens=1)
    assert ratio() == 4 / 2
    assert ratio() == 4 / 2, "one of them has entered"
    for index in range(9):
        engine.add(f"more {index}", [9] * 100, max_tokens=1)
    assert ratio() == 6 / 2, "there are eight seats"


def test_where_no_seat_is_free_nobody_can_hold_up_the_streams() -> None:
    engine = FakeEngine(max_num_seqs=2)
    budget = engine.scheduler._planner._budget = SeenBudget(None)
    for index in range(3):
        engine.add(f"stream {index}", [index], max_tokens=9)
    for _ in range(3):
        engine.step()
    budget.prompts_per_stream = None
    engine.step()
    assert budget.prompts_per_stream is None


@pytest.mark.parametrize(("max_step_ms", "background"), [(0.0, False), (1e9, False), (0.001, True)])
def test_a_prompt_takes_whole_steps_where_nobody_is_held_up(max_step_ms: float, background: bool) -> None:
    engine = FakeEngine(num_blocks=600, max_model_len=2000, max_num_batched_tokens=512, max_step_ms=max_step_ms)
    assert shares_of_a_long_prompt(engine, background) == [504, 496]


def test_prompts_alone_take_whole_steps() -> None:
    engine = FakeEngine(num_blocks=600, max_model_len=2000, max_num_batched_tokens=512, max_step_ms=0.001)
    engine.add("a", [3] * 1000, max_tokens=1)
    engine.add("b", [4] * 24, max_tokens=1)
    assert [engine.step().num_scheduled_tokens for _ in range(2)] == [{"a": 512}, {"a": 488, "b": 24}]
