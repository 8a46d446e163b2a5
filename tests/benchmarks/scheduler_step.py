"""Host cost of the scheduler, in milliseconds. Run by hand: python tests/benchmarks/scheduler_step.py [num_requests]

Decode: all requests run and get one token a step. Admission: all prompts are prefilled and end in the same steps.
"""

import gc
import random
import statistics
import sys
import time

from engined.cache.kv_cache_manager import KVCacheManager
from engined.config.schema import SchedulerConfig
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.plan import ModelRunnerOutput, SchedulerOutput
from engined.protocol.sampling import SamplingParams
from engined.scheduler.request import Request
from engined.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT_LENGTH = 128
NUM_STEPS = 1000


def make_scheduler(num_requests: int, num_blocks: int) -> tuple[Scheduler, KVCacheManager]:
    """A scheduler whose budget prefills all prompts in one step."""
    config = SchedulerConfig(max_num_seqs=num_requests, max_num_batched_tokens=num_requests * PROMPT_LENGTH)
    cache = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=True, hash_secret=b"benchmark")
    return Scheduler(config, cache, max_model_len=8192, clock=time.monotonic), cache


def make_requests(num_requests: int, cache: KVCacheManager, max_tokens: int) -> list[Request]:
    """Requests with different prompts and EOS ids, as the input thread makes them."""
    draw = random.Random(num_requests)
    sampling = SamplingParams(max_tokens=max_tokens, eos_token_ids=(1, 2))
    return [
        Request(
            EngineCoreRequest(
                request_id=f"cmpl-{index:032x}",
                prompt_token_ids=draw.choices(range(3, 49152), k=PROMPT_LENGTH),
                sampling=sampling,
                arrival_time=0.0,
            ),
            client_index=0,
            hasher=cache.hasher,
        )
        for index in range(num_requests)
    ]


def sample(plan: SchedulerOutput, token_id: int) -> ModelRunnerOutput:
    """A result in which every request of the plan got a token."""
    request_ids = list(plan.num_scheduled_tokens)
    return ModelRunnerOutput(request_ids=request_ids, sampled_token_ids=[[token_id] for _ in request_ids])


def report(name: str, seconds: list[float]) -> None:
    """Print the distribution of one measurement."""
    ordered = sorted(seconds)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(
        f"{name:<34} median {statistics.median(ordered) * 1e3:7.3f}  p99 {p99 * 1e3:7.3f}  "
        f"max {ordered[-1] * 1e3:7.3f} ms"
    )


def run_steps(scheduler: Scheduler, num_steps: int) -> tuple[list[float], list[float]]:
    """Run steps and return the seconds of their two halves."""
    schedule_times, update_times = [], []
    for step in range(num_steps):
        start = time.perf_counter()
        plan = scheduler.schedule()
        schedule_times.append(time.perf_counter() - start)
        result = sample(plan, 3 + step)
        start = time.perf_counter()
        scheduler.update_from_output(plan, result)
        update_times.append(time.perf_counter() - start)
    return schedule_times, update_times


def measure_decode(num_requests: int, num_blocks: int, name: str) -> None:
    """Steps in which every running request decodes; a small pool makes some of them preempt and admit."""
    scheduler, cache = make_scheduler(num_requests, num_blocks)
    for request in make_requests(num_requests, cache, max_tokens=NUM_STEPS + 10):
        scheduler.add_request(request)
    run_steps(scheduler, 1)
    schedule_times, update_times = run_steps(scheduler, NUM_STEPS)
    stats = scheduler.stats()
    print(f"{name}: {stats.num_running} running, {stats.num_preemptions} preemptions")
    report("  schedule", schedule_times)
    report("  update_from_output", update_times)
    report("  both", [sum(pair) for pair in zip(schedule_times, update_times, strict=True)])


def measure_turnover(num_requests: int) -> None:
    """Steps that admit, prefill and end all requests at once: the worst case."""
    scheduler, cache = make_scheduler(num_requests, num_requests * 10)
    make_times, schedule_times, update_times = [], [], []
    for _ in range(20):
        start = time.perf_counter()
        requests = make_requests(num_requests, cache, max_tokens=1)
        make_times.append((time.perf_counter() - start) / num_requests)
        for request in requests:
            scheduler.add_request(request)
        schedule_time, update_time = run_steps(scheduler, 1)
        schedule_times += schedule_time
        update_times += update_time
    print(f"turnover: {num_requests} requests of {PROMPT_LENGTH} tokens enter and end in one step")
    report("  make one request (input thread)", make_times)
    report("  schedule", schedule_times)
    report("  update_from_output", update_times)


def main() -> None:
    """Print all figures."""
    num_requests = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    blocks_at_end = (PROMPT_LENGTH + NUM_STEPS) // BLOCK_SIZE + 2
    gc.collect()
    gc.freeze()  # as the engine core does once it has loaded
    measure_decode(num_requests, num_requests * blocks_at_end, "decode, room for all")
    measure_decode(num_requests, num_requests * blocks_at_end // 4, "decode, room for a quarter")
    measure_turnover(num_requests)


if __name__ == "__main__":
    main()
