"""The kernels, built for each instruction set that this machine runs."""

from pathlib import Path

import pytest
import torch

from engined.kernels.cpu.build import NATIVE, build, find_compiler
from engined.kernels.cpu.library import CpuKernels

CAPABILITY = torch.backends.cpu.get_cpu_capability()
MACHINES = {"native": NATIVE}
if torch.backends.mkldnn.is_available() and CAPABILITY in ("AVX2", "AVX512"):
    MACHINES |= {
        "sse2": ("-march=x86-64",),
        "avx2": ("-march=x86-64-v3",),
        # The vectors of AVX512, each made of two: its paths, if not its instructions.
        "wide": ("-march=x86-64-v3", "-DENGINED_LANES=16", "-Wno-psabi"),
    }


@pytest.fixture(scope="session", params=list(MACHINES))
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CpuKernels:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler here")
    folder: Path = tmp_path_factory.getbasetemp() / "kernels"
    return CpuKernels(build(compiler, folder, MACHINES[request.param]))
