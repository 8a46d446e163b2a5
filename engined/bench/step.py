"""What the host does in a step: scheduler, batch, flat inputs, sampling, all real around a model that computes nothing.

Runs in the process of `engined bench step`, which plays the busy loop of an engine core.
"""

import gc
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, cast

from engined.bench.summary import quantile
from engined.cache.kv_cache_manager import KVCacheManager
from engined.config.schema import SchedulerConfig
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.causal_lm import CausalLM
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.sampling import SamplingParams
from engined.scheduler.request import Request
from engined.scheduler.scheduler import Scheduler
from engined.worker.input_batch import BatchShape
from engined.worker.model_runner import ModelRunner

Scenario = Literal["decode", "crowded", "turnover"]
"""decode: all requests run, and each gets a token a step. crowded: the same with blocks for a quarter of them, so that
some are preempted and come back. turnover: all enter, are prefilled and end in the same step."""

Part = Literal["schedule", "prepare", "sample", "update", "step"]
"""schedule: the plan. prepare: batch and inputs. sample: of logits that are there. update: the results taken in. step:
all together."""

_BLOCK_SIZE = 16
_PROMPT_LENGTH = 128
_VOCAB_SIZE = 16
"""Of the stub's logits: reading real ones is the model's cost, not the host's."""
_EOS_TOKEN_IDS = (1, 2)
"""The stub never samples them."""
_STEPS_PER_TURNOVER = 20
"""A turnover costs as much as so many other steps, and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """One part of all measured steps, in seconds."""

    median: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One scenario with one number of requests."""

    scenario: Scenario
    num_requests: int
    num_steps: int
    num_preemptions: int
    parts: dict[Part, PartTimes]


class _StubModel:
    """Computes nothing. Stands for a CausalLM in the model runner; its hidden states are the ids."""

    kernels = None

    def __init__(self) -> None:
        self._logits: Any = None

    def zero_kv_blocks(self, block_ids: list[int]) -> None:
        """Nothing is damaged."""
        assert not block_ids

    def forward(self, input_ids: Any, positions: Any) -> Any:
        """Ids [T] for hidden states."""
        return input_ids

    def compute_logits(self, hidden: Any) -> Any:
        """float32 [S, V], all alike; the same memory each time."""
        if self._logits is None or len(self._logits) < len(hidden):
            self._logits = hidden.new_zeros((len(hidden), _VOCAB_SIZE)).float()
        return self._logits[: len(hidden)]


class _Core:
    """A scheduler and a model runner, and the requests of a benchmark."""

    def __init__(self, num_requests: int, num_blocks: int, max_model_len: int) -> None:
        # The budget prefills all prompts in one step.
        config = SchedulerConfig(max_num_seqs=num_requests, max_num_batched_tokens=num_requests * _PROMPT_LENGTH)
        self._cache = KVCacheManager(num_blocks, _BLOCK_SIZE, enable_prefix_caching=True, hash_secret=b"benchmark")
        self.scheduler = Scheduler(config, self._cache, max_model_len, clock=time.monotonic)
        shape = BatchShape(max_num_seqs=num_requests, max_model_len=max_model_len, block_size=_BLOCK_SIZE)
        model = cast(CausalLM, _StubModel())
        self._runner = ModelRunner(model, shape, TensorParallelGroup(), _VOCAB_SIZE)
        self._draw = random.Random(num_requests)
        self._num_made = 0

    def add_requests(self, count: int, max_tokens: int) -> None:
        """Requests with different prompts, as the input thread makes them."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, eos_token_ids=_EOS_TOKEN_IDS)
        for _ in range(count):
            self._num_made += 1
            message = EngineCoreRequest(
                request_id=f"cmpl-{self._num_made:032x}",
                prompt_token_ids=self._draw.choices(range(3, 49152), k=_PROMPT_LENGTH),
                sampling=sampling,
                arrival_time=0.0,
            )
            self.scheduler.add_request(Request(message, client_index=0, hasher=self._cache.hasher))

    def step(self) -> dict[Part, float]:
        """One step as the engine core does it; seconds of each part."""
        times = [time.perf_counter()]
        plan = self.scheduler.schedule()
        times.append(time.perf_counter())
        self._runner.execute_model(plan)
        times.append(time.perf_counter())
        result = self._runner.sample_tokens()
        times.append(time.perf_counter())
        self.scheduler.update_from_output(plan, result)
        times.append(time.perf_counter())
        return {
            "schedule": times[1] - times[0],
            "prepare": times[2] - times[1],
            "sample": times[3] - times[2],
            "update": times[4] - times[3],
            "step": times[4] - times[0],
        }


def measure_steps(scenario: Scenario, num_requests: int, num_steps: int) -> StepResult:
    """Run a scenario and measure `num_steps`; of turnovers, a twentieth of that."""
    if scenario == "turnover":
        num_steps = -(-num_steps // _STEPS_PER_TURNOVER)
    longest = _PROMPT_LENGTH + num_steps + _BLOCK_SIZE
    blocks_of_one = -(-longest // _BLOCK_SIZE) + 1
    num_blocks = num_requests * blocks_of_one
    if scenario == "crowded":
        num_blocks = max(num_blocks // 4, blocks_of_one)
    core = _Core(num_requests, num_blocks, longest)
    if scenario != "turnover":
        core.add_requests(num_requests, max_tokens=num_steps + 2)
        core.step()  # the prefill
    times: list[dict[Part, float]] = []
    with _frozen():
        for _ in range(num_steps):
            if scenario == "turnover":
                core.add_requests(num_requests, max_tokens=1)
            times.append(core.step())
    parts: tuple[Part, ...] = ("schedule", "prepare", "sample", "update", "step")
    return StepResult(
        scenario=scenario,
        num_requests=num_requests,
        num_steps=num_steps,
        num_preemptions=core.scheduler.stats().num_preemptions,
        parts={part: _part_times([step[part] for step in times]) for part in parts},
    )


@contextmanager
def _frozen() -> Iterator[None]:
    """What exists now is left out of garbage collection, as in an engine core that has loaded."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _part_times(seconds: list[float]) -> PartTimes:
    return PartTimes(median=median(seconds), p99=quantile(seconds, 0.99))
