"""The warm-up of a rank gives no sign of life within a forward, so that the forward must be short on a slow machine."""

import time

import pytest

from engined.layers.tensor_parallel import TensorParallelGroup
from engined.process.progress import report_nothing
from engined.worker import worker as worker_module
from engined.worker.worker import Worker
from tests.reliability.settings import engine_settings


@pytest.mark.parametrize(("seconds_a_prompt", "longest"), [(0.0, 64), (0.1, 5), (2.0, 1)])
def test_the_first_token_says_how_long_a_prompt_may_be(
    monkeypatch: pytest.MonkeyPatch, seconds_a_prompt: float, longest: int
) -> None:
    monkeypatch.setattr(worker_module, "_WARM_UP_SECONDS", 0.5)
    lengths: list[int] = []

    def run_prompt(worker: Worker, num_tokens: int) -> None:
        lengths.append(num_tokens)
        time.sleep(seconds_a_prompt)

    monkeypatch.setattr(Worker, "_run_prompt", run_prompt)
    Worker(engine_settings(), rank=0, report_progress=report_nothing)._warm_up(TensorParallelGroup())
    assert lengths[0] == 1 and 1 <= lengths[1] <= longest
