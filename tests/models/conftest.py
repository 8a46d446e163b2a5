"""One compute thread: the models are tiny, and two threads that wait for each other crawl on a busy machine."""

import os
from collections.abc import Iterator

import pytest
import torch

from engined.config.directories import cache_directory
from engined.kernels.cpu.library import CpuKernels, load_cpu_kernels


@pytest.fixture(scope="session")
def cpu_kernels() -> CpuKernels:
    kernels = load_cpu_kernels(cache_directory(os.environ) / "kernels")
    if kernels is None:
        pytest.skip("no C++ compiler here")
    return kernels


@pytest.fixture(autouse=True, scope="session")
def single_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
