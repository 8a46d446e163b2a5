"""The C++ kernels as functions over tensors. Rank processes; made once by the worker and handed to the layers.

Calls go through ctypes, which lets other Python threads run meanwhile. Kernels use the OpenMP
threads of torch. Tensors are checked by assertions: their makers are layers, not users.
"""

import ctypes
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engined.kernels.cpu.build import build, find_compiler
from engined.process.progress import ProgressReporter, report_nothing

logger = logging.getLogger(__name__)

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_ssize_t


class AttentionShape(ctypes.Structure):
    """`Shape` of attention.cpp; heads are those of one rank, and a window of 0 has no end."""

    _fields_ = (
        *((name, _SIZE) for name in ("num_heads", "num_kv_heads", "head_dim", "block_size", "num_blocks", "window")),
        ("scale", ctypes.c_float),
    )


class CpuKernels:
    """One built library."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be loaded."""
        self._library = ctypes.CDLL(str(path))
        self.lanes: int = self._function("engined_lanes", [], _SIZE)()
        """Floats in a vector: sizes that the kernels step through must be multiples of it."""
        self._panel: int = self._function("engined_panel", [], _SIZE)()
        self._pack = self._by_dtype("engined_pack", [_POINTER] * 2 + [_SIZE] * 2)
        self._linear = self._by_dtype("engined_linear", [_POINTER] * 4 + [_SIZE] * 3)
        self._add_rms_norm = self._by_dtype("engined_add_rms_norm", [_POINTER] * 4 + [_SIZE] * 2 + [ctypes.c_float])
        self._silu_and_multiply = self._by_dtype("engined_silu_and_multiply", [_POINTER] * 2 + [_SIZE] * 2)

    def pack_linear(self, weight: Tensor) -> Tensor:
        """weight [out_features, in_features], float32 or bfloat16 -> the form that `linear` reads, of the same type."""
        out_features, in_features = weight.shape
        weight = weight.contiguous()
        packed = weight.new_empty(-(-out_features // self._panel) * self._panel * in_features)
        self._pack[weight.dtype](weight.data_ptr(), packed.data_ptr(), out_features, in_features)
        return packed

    def linear(self, inputs: Tensor, packed: Tensor, out_features: int, bias: Tensor | None) -> Tensor:
        """inputs [rows, in_features], all of one type -> [rows, out_features]. Sums are float32."""
        assert inputs.dtype == packed.dtype
        inputs = inputs.contiguous()
        rows, in_features = inputs.shape
        output = inputs.new_empty(rows, out_features)
        self._linear[inputs.dtype](
            inputs.data_ptr(),
            packed.data_ptr(),
            None if bias is None else bias.data_ptr(),
            output.data_ptr(),
            rows,
            out_features,
            in_features,
        )
        return output

    def add_rms_norm(self, residual: Tensor, values: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
        """Adds `values` to `residual` in place, both [rows, size]; the norm of the sum, scaled by weight [size]."""
        assert residual.is_contiguous() and (values is None or values.is_contiguous())
        output = torch.empty_like(residual)
        size = weight.shape[0]
        self._add_rms_norm[residual.dtype](
            residual.data_ptr(),
            None if values is None else values.data_ptr(),
            weight.data_ptr(),
            output.data_ptr(),
            residual.numel() // size,
            size,
            epsilon,
        )
        return output

    def silu_and_multiply(self, gate_and_up: Tensor) -> Tensor:
        """[rows, 2 * size] -> [rows, size]"""
        assert gate_and_up.is_contiguous()
        rows, width = gate_and_up.shape
        output = gate_and_up.new_empty(rows, width // 2)
        self._silu_and_multiply[output.dtype](gate_and_up.data_ptr(), output.data_ptr(), rows, width // 2)
        return output

    def attention(self, dtype: torch.dtype, kv_cache_dtype: torch.dtype) -> Callable[..., None]:
        """The raw function of attention.cpp for these types."""
        arguments = [ctypes.POINTER(AttentionShape)] + [_POINTER] * 8 + [_SIZE] * 2 + [_POINTER]
        return self._function(f"engined_attention_{DTYPES[dtype]}_{DTYPES[kv_cache_dtype]}", arguments)

    def _by_dtype(self, name: str, argument_types: list[Any]) -> dict[torch.dtype, Callable[..., None]]:
        return {dtype: self._function(f"{name}_{suffix}", argument_types) for dtype, suffix in DTYPES.items()}

    def _function(self, name: str, argument_types: list[Any], result_type: Any = None) -> Callable[..., Any]:
        function = getattr(self._library, name)
        function.argtypes, function.restype = argument_types, result_type
        return function  # type: ignore[no-any-return]


def load_cpu_kernels(cache: Path, report_progress: ProgressReporter = report_nothing) -> CpuKernels | None:
    """The kernels, built first if need be; None, with a warning that says why, where that is not possible."""
    compiler = find_compiler()
    if compiler is None:
        logger.warning("no g++ here: computing with torch alone, which is slower; install g++")
        return None
    try:
        return CpuKernels(build(compiler, cache, report_progress=report_progress))
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().partition("\n")[0]
        logger.warning("cannot build the CPU kernels, computing with torch alone, which is slower: %s", reason)
        return None
