"""A worker with quantized weights does not start without the kernels that multiply by them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from engined.checkpoint.load import load_model_info
from engined.config.directories import cache_directory
from engined.config.schema import Config, ModelConfig, Quantization
from engined.errors import ConfigError
from engined.process.progress import report_nothing
from engined.protocol.boot import EngineSettings
from engined.worker.worker import Worker


def settings(model: Path, quantization: Quantization) -> EngineSettings:
    return EngineSettings(
        config=Config(model=ModelConfig(quantization=quantization)),
        model_info=load_model_info(str(model)),
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
        num_kv_blocks=32,
        max_model_len=512,
        num_threads=2,
        kernel_cache=str(cache_directory(os.environ) / "kernels"),
    )


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_refused_without_kernels(default_gguf: Path, quantization: Quantization) -> None:
    without_kernels = replace(settings(default_gguf, quantization), kernel_cache=None)
    with pytest.raises(ConfigError, match=f"--quantization {quantization} needs the CPU kernels.*install g"):
        Worker(without_kernels, rank=0, report_progress=report_nothing).initialize()
