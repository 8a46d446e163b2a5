"""What a rank would compute with here: `python -m engined.worker.probe KERNEL_CACHE`, one JSON object on stdout.

A process of its own, made by `engined doctor`: where torch cannot be imported, or a kernel is killed by an instruction
that the machine does not have after all, that is an answer too. Builds the kernels as the first start would.
"""

import logging
import sys
from pathlib import Path

import torch

from engined.errors import KernelError
from engined.kernels.cpu.build import find_compiler
from engined.kernels.cpu.library import DTYPES, CpuKernels, open_cpu_kernels
from engined.kernels.cpu.memory import WeightMemory
from engined.kernels.cpu.tiles import has_tiles, request_tiles
from engined.layers.dense_weight import OneDnnWeightMethod
from engined.protocol.codec import encode
from engined.protocol.compute_report import ComputeReport

_ROWS, _SIZE = 48, 64
"""Enough rows for the path of large batches."""


def probe(kernel_cache: Path) -> ComputeReport:
    """Build the kernels if need be, and try them."""
    kernels, problem = None, None
    try:
        kernels = open_cpu_kernels(kernel_cache)
        problem = _check(kernels)
    except KernelError as error:
        problem = str(error)
    tiles = request_tiles()
    return ComputeReport(
        torch=torch.__version__,
        compiler=find_compiler(),
        kernels=None if kernels is None else str(kernels.path),
        problem=problem,
        tiles="granted" if tiles else "refused" if has_tiles() else "none",
        linears={name: _linear_path(dtype, kernels) for dtype, name in DTYPES.items()}
        | ({} if kernels is None else {"int8, int4": kernels.integer_instructions}),
        attention={
            name: "torch" if kernels is None else _instructions(dtype, kernels) for dtype, name in DTYPES.items()
        },
    )


def _linear_path(dtype: torch.dtype, kernels: CpuKernels | None) -> str:
    if kernels is not None:
        return _instructions(dtype, kernels)
    return "oneDNN" if OneDnnWeightMethod.supports(dtype, torch.device("cpu")) else "torch"


def _instructions(dtype: torch.dtype, kernels: CpuKernels) -> str:
    return kernels.bfloat16_instructions if dtype == torch.bfloat16 else kernels.vector_instructions


def _check(kernels: CpuKernels) -> str | None:
    """Multiply by the identity, whose result is exact; what is wrong, if anything is."""
    memory = WeightMemory()
    for dtype, name in DTYPES.items():
        inputs = torch.arange(_ROWS * _SIZE).reshape(_ROWS, _SIZE).remainder(256).to(dtype)
        packed = kernels.pack_linear(torch.eye(_SIZE, dtype=dtype), memory)
        if not torch.equal(kernels.linear(inputs, packed, None), inputs):
            return f"the CPU kernels compute wrong products of {name}"
    return None


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    sys.stdout.buffer.write(encode(probe(Path(sys.argv[1]))))
