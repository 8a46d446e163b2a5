"""Options that need the CPU kernels: a worker does not start without them; what they do."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from engined.checkpoint.load import load_model_info
from engined.config.directories import cache_directory
from engined.config.schema import Config, ModelConfig, ParallelConfig, Quantization
from engined.errors import ConfigError
from engined.process.progress import report_nothing
from engined.protocol.boot import EngineSettings
from engined.worker.worker import Worker


def settings(model: Path, config: Config) -> EngineSettings:
    return EngineSettings(
        config=config,
        model_info=load_model_info(str(model)),
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
        num_kv_blocks=32,
        max_model_len=512,
        num_threads=len(os.sched_getaffinity(0)),
        kernel_cache=str(cache_directory(os.environ) / "kernels"),
    )


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantization_is_refused_without_kernels(default_gguf: Path, quantization: Quantization) -> None:
    config = Config(model=ModelConfig(quantization=quantization))
    without_kernels = replace(settings(default_gguf, config), kernel_cache=None)
    with pytest.raises(ConfigError, match=f"--quantization {quantization} needs the CPU kernels.*install g"):
        Worker(without_kernels, rank=0, report_progress=report_nothing).initialize()


def test_bound_threads_are_refused_without_kernels(default_gguf: Path) -> None:
    config = Config(parallel=ParallelConfig(bind_threads=True))
    without_kernels = replace(settings(default_gguf, config), kernel_cache=None)
    with pytest.raises(ConfigError, match="--bind-threads needs the CPU kernels.*or leave out --bind-threads"):
        Worker(without_kernels, rank=0, report_progress=report_nothing).initialize()


def test_a_worker_keeps_its_core_only_if_it_is_asked_to(default_gguf: Path) -> None:
    cpus = os.sched_getaffinity(0)

    def cpus_of_a_worker(*, bind_threads: bool) -> set[int]:
        config = Config(parallel=ParallelConfig(bind_threads=bind_threads))
        Worker(settings(default_gguf, config), rank=0, report_progress=report_nothing).initialize()
        return os.sched_getaffinity(0)

    # In threads of their own, as a core has one for its worker: they stay bound.
    with ThreadPoolExecutor(1) as free, ThreadPoolExecutor(1) as bound:
        assert free.submit(cpus_of_a_worker, bind_threads=False).result() == cpus
        assert bound.submit(cpus_of_a_worker, bind_threads=True).result() == {min(cpus)}
