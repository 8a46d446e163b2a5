"""In float32 a request's logits have the same bits however its tokens are computed, and whoever shares the step."""

import os
from pathlib import Path

import pytest
import torch

from engined.checkpoint.load import load_model_info
from engined.config.directories import cache_directory
from engined.config.schema import Config
from engined.process.progress import report_nothing
from engined.protocol.boot import EngineSettings
from engined.protocol.engine import TokenLogprobs
from engined.protocol.plan import NewRequestData, SchedulerOutput
from engined.protocol.sampling import SamplingParams
from engined.worker.worker import Worker

NUM_TOKENS = 150
BLOCKS_EACH = 25
# Without our kernels, oneDNN may elsewhere pick another product for other rows; see tests/layers/test_onednn_weight.py.
TORCH_TOLERANCE = 0.0 if torch.backends.cpu.get_cpu_capability() == "AVX2" else 1e-4


@pytest.fixture(scope="module", params=["kernels", "torch"])
def worker(request: pytest.FixtureRequest, default_gguf: Path) -> Worker:
    kernel_cache = str(cache_directory(os.environ) / "kernels") if request.param == "kernels" else None
    settings = EngineSettings(
        config=Config(),
        model_info=load_model_info(str(default_gguf)),
        dtype="float32",
        kv_cache_dtype="float32",
        num_kv_blocks=10 * BLOCKS_EACH,
        max_model_len=BLOCKS_EACH * 16,
        num_threads=2,
        kernel_cache=kernel_cache,
    )
    worker = Worker(settings, rank=0, report_progress=report_nothing)
    worker.initialize()
    return worker


def make_request(number: int, num_tokens: int) -> NewRequestData:
    token_ids = torch.randint(100, 40000, (num_tokens,), generator=torch.Generator().manual_seed(number)).tolist()
    return NewRequestData(
        request_id=str(number),
        token_ids=token_ids,
        num_prompt_tokens=num_tokens,
        sampling=SamplingParams(max_tokens=100, temperature=0.0, logprobs=20),
        block_ids=list(range(number * BLOCKS_EACH, (number + 1) * BLOCKS_EACH)),
        num_computed_tokens=0,
    )


def run(worker: Worker, *steps: tuple[list[NewRequestData], dict[str, int]]) -> TokenLogprobs:
    """Run steps of (new requests, scheduled tokens); the log-probabilities that request 0 gets in the last one."""
    result = None
    for new, scheduled in steps:
        worker.execute_model(
            SchedulerOutput(
                step_id=1, new_requests=new, num_scheduled_tokens=scheduled, num_tokens=sum(scheduled.values())
            )
        )
        result = worker.sample_tokens()
    assert result is not None
    everyone = list({request_id for _, scheduled in steps for request_id in scheduled})
    worker.execute_model(SchedulerOutput(step_id=1, removed_request_ids=everyone))
    return result.logprobs["0"][0]


def test_bits_do_not_depend_on_the_batch(worker: Worker, request: pytest.FixtureRequest) -> None:
    tolerance = 0.0 if "kernels" in request.node.name else TORCH_TOLERANCE
    first = make_request(0, NUM_TOKENS)
    others = [make_request(number, 60 + 37 * number) for number in range(1, 9)]
    prompts = {other.request_id: len(other.token_ids) for other in others}
    decodes = dict.fromkeys(prompts, 1)
    alone = run(worker, ([first], {"0": NUM_TOKENS - 1}), ([], {"0": 1}))
    for together in (
        run(worker, ([first], {"0": NUM_TOKENS})),
        run(worker, ([first], {"0": 100}), ([], {"0": NUM_TOKENS - 100})),
        run(worker, ([first], {"0": NUM_TOKENS - 1}), (others, prompts), ([], {"0": 1, **decodes})),
        run(worker, ([first, *others], {"0": NUM_TOKENS, **prompts})),
    ):
        assert together.token_ids == alone.token_ids
        assert together.logprobs == pytest.approx(alone.logprobs, abs=tolerance, rel=0)
