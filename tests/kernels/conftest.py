"""The kernels, built for each instruction set that this machine runs."""

import os
from pathlib import Path

import pytest
import torch

from engined.config.resources import cpu_flags
from engined.kernels.cpu.build import build, find_compiler
from engined.kernels.cpu.library import CpuKernels
from engined.kernels.cpu.tiles import WITHOUT_TILES, machine_flags, request_tiles

CAPABILITY = torch.backends.cpu.get_cpu_capability()
MACHINES = {"native": machine_flags()}
if request_tiles():
    MACHINES |= {"without-tiles": WITHOUT_TILES}
if "avx512_bf16" in cpu_flags():
    MACHINES |= {"without-bfloat16": (*WITHOUT_TILES, "-mno-avx512bf16")}
if "avx_vnni" in cpu_flags():
    MACHINES |= {"vnni-256": ("-march=x86-64-v3", "-mavxvnni")}
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
    base = tmp_path_factory.getbasetemp()
    # The folder of the whole run, where there are several workers: what one has built serves the others.
    folder: Path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    return CpuKernels(build(compiler, folder, MACHINES[request.param]))
