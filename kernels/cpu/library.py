"""The C++ kernels as functions over tensors. Rank processes; made once by the worker and handed to the layers.

Calls go through ctypes, which lets other Python threads run meanwhile. Kernels use the OpenMP
threads of torch. Tensors are checked by assertions: their makers are layers, not users.
"""

import ctypes
import logging
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engined.errors import KernelError
from engined.kernels.cpu.build import build, find_compiler
from engined.kernels.cpu.memory import WeightMemory
from engined.kernels.cpu.tiles import machine_flags, request_tiles
from engined.process.progress import ProgressReporter, report_nothing

logger = logging.getLogger(__name__)

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_ssize_t


class LinearWeight(ctypes.Structure):
    """`Linear` of linear.h: one packed weight, and how it is packed. `PackedLinear` owns what it points to."""

    _fields_ = (
        ("format", ctypes.c_int64),
        ("outputs", _SIZE),
        ("inputs", _SIZE),
        ("is_gated", ctypes.c_int64),
        ("weight", _POINTER),
        ("bias", _POINTER),
    )


ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""`ElementType` of elements.h."""
_FORMATS = {torch.float32: 0, torch.bfloat16: 1}
_INT8, _INT4 = 2, 3
"""`WeightFormat` of linear.h."""

INT4_BLOCK = 32
"""Inputs of a block of int4 weights."""
INT4_BLOCK_BYTES = 20
"""Scale and minimum in float16, and 16 bytes of numbers: `Block` of quantize.h, and Q4_1 of GGUF."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLinear:
    """A weight in the form that the kernels multiply by."""

    out_features: int
    """Columns of the result: half the rows of the weight if that is gated."""
    dtype: torch.dtype
    """Of inputs, bias and result."""
    shape: LinearWeight
    """Without a bias."""
    memory: Tensor

    def with_bias(self, bias: Tensor | None) -> LinearWeight:
        """What a kernel is handed. `bias`, and this object, must outlive it."""
        shape = LinearWeight.from_buffer_copy(self.shape)
        shape.bias = None if bias is None else bias.data_ptr()
        return shape


class AttentionShape(ctypes.Structure):
    """`AttentionShape` of attention.h; heads are those of one rank, and a window of 0 has no end."""

    _fields_ = (
        ("dtype", ctypes.c_int64),
        ("kv_cache_dtype", ctypes.c_int64),
        *((name, _SIZE) for name in ("num_heads", "num_kv_heads", "head_dim", "block_size")),
        *((name, _SIZE) for name in ("block_stride", "head_stride", "window")),
        ("scale", ctypes.c_float),
    )


class AttentionBatch(ctypes.Structure):
    """`AttentionBatch` of attention.h: int64 arrays, which must outlive it, and their sizes."""

    _fields_ = (
        *((name, _POINTER) for name in ("query_starts", "seq_lens", "slots", "block_table")),
        ("table_width", _SIZE),
        ("num_requests", _SIZE),
    )


class CpuKernels:
    """One built library."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be loaded."""
        request_tiles()
        self._library = ctypes.CDLL(str(path))
        self.lanes: int = self._function("engined_lanes", [], _SIZE)()
        """Floats in a vector: sizes that the kernels step through must be multiples of it."""
        text = ctypes.c_char_p
        self.bfloat16_instructions: str = self._function("engined_bfloat16_instructions", [], text)().decode()
        """What products and attention over bfloat16 use, for example "AMX bf16"."""
        self.integer_instructions: str = self._function("engined_integer_instructions", [], text)().decode()
        """What products by quantized weights use, for example "AVX512-VNNI"."""
        self.vector_instructions: str = self._function("engined_vector_instructions", [], text)().decode()
        """What all else uses, for example "AVX2"."""
        self.path = path
        weight = ctypes.POINTER(LinearWeight)
        self._packed_bytes = self._function("engined_packed_bytes", [weight], _SIZE)
        self._pack = self._function("engined_pack", [weight, _POINTER, _POINTER])
        self._quantize_blocks = self._function("engined_quantize_blocks", [_POINTER, _SIZE, _SIZE, _POINTER])
        self._linear = self._function("engined_linear", [weight, _POINTER, _POINTER, _SIZE])
        norm_arguments = [ctypes.c_int64, *[_POINTER] * 4, _SIZE, _SIZE, ctypes.c_float]
        self._add_rms_norm = self._function("engined_add_rms_norm", norm_arguments)
        self._sample = self._function("engined_sample", [ctypes.c_int64, _POINTER, *[_SIZE] * 3, *[_POINTER] * 4])
        heads_arguments = [ctypes.c_int64, _POINTER, _POINTER, *[_SIZE] * 4, ctypes.c_float]
        self._normalize_heads = self._function("engined_normalize_heads", heads_arguments)
        self._bind_threads = self._function("engined_bind_threads", [_POINTER, _SIZE])

    def bind_threads(self, cpus: Sequence[int]) -> None:
        """The calling thread and those that compute with it get a core of `cpus` each.

        They meet some 200 times a forward, and where one waits for its core all wait. With 32 streams and their client
        on two cores, half of the forwards took more than 23 ms; bound, 20. But two programs that bind theirs to the
        same cores get nowhere: whoever has one core waits for the other.
        """
        numbers = (ctypes.c_int64 * len(cpus))(*cpus)
        self._bind_threads(numbers, len(cpus))

    def pack_linear(self, weight: Tensor, memory: WeightMemory, is_gated: bool = False) -> PackedLinear:
        """weight [rows, in_features], float32 or bfloat16 -> the form that `linear` reads, in a piece of `memory`.

        A gated one holds two weights, gate and up, one above the other.
        """
        rows, in_features = weight.shape
        shape = LinearWeight(_FORMATS[weight.dtype], rows, in_features, is_gated)
        return self._packed(shape, weight, memory, weight.dtype)

    def pack_int8(self, weight: Tensor, memory: WeightMemory, is_gated: bool = False) -> PackedLinear:
        """The same for a bfloat16 weight, rounded to 8 bits."""
        assert weight.dtype == torch.bfloat16
        return self._packed(LinearWeight(_INT8, *weight.shape, is_gated), weight, memory, torch.bfloat16)

    def pack_int4(self, blocks: Tensor, in_features: int, memory: WeightMemory, is_gated: bool = False) -> PackedLinear:
        """blocks [rows, int4_blocks(in_features), INT4_BLOCK_BYTES] uint8, as `quantize_blocks` makes them."""
        assert blocks.shape[1:] == (int4_blocks(in_features), INT4_BLOCK_BYTES)
        shape = LinearWeight(_INT4, blocks.shape[0], in_features, is_gated)
        return self._packed(shape, blocks, memory, torch.bfloat16)

    def quantize_blocks(self, weight: Tensor, blocks: Tensor) -> None:
        """weight [rows, in_features] bfloat16 -> blocks, contiguous, in the form that `pack_int4` takes."""
        rows, in_features = weight.shape
        assert weight.dtype == torch.bfloat16 and blocks.is_contiguous()
        assert blocks.shape == (rows, int4_blocks(in_features), INT4_BLOCK_BYTES)
        self._quantize_blocks(weight.contiguous().data_ptr(), rows, in_features, blocks.data_ptr())

    def _packed(self, shape: LinearWeight, weight: Tensor, memory: WeightMemory, dtype: torch.dtype) -> PackedLinear:
        weight = weight.contiguous()
        packed = memory.allocate(self._packed_bytes(ctypes.byref(shape)))
        self._pack(ctypes.byref(shape), weight.data_ptr(), packed.data_ptr())
        shape.weight = packed.data_ptr()
        out_features = shape.outputs // 2 if shape.is_gated else shape.outputs
        return PackedLinear(out_features=out_features, dtype=dtype, shape=shape, memory=packed)

    def linear(self, inputs: Tensor, packed: PackedLinear, bias: Tensor | None) -> Tensor:
        """inputs [rows, in_features] -> [rows, out_features]: inputs times the weight, plus the bias; of a gated weight
        silu(gate) * up. Sums are float32."""
        assert inputs.dtype == packed.dtype and inputs.shape[1] == packed.shape.inputs
        inputs = inputs.contiguous()
        output = inputs.new_empty(inputs.shape[0], packed.out_features)
        weight = packed.with_bias(bias)
        self._linear(ctypes.byref(weight), inputs.data_ptr(), output.data_ptr(), inputs.shape[0])
        return output

    def add_rms_norm(self, residual: Tensor, values: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
        """Adds `values` to `residual` in place, both [rows, size]; the norm of the sum, scaled by weight [size]."""
        assert residual.is_contiguous() and (values is None or values.is_contiguous())
        output = torch.empty_like(residual)
        size = weight.shape[0]
        self._add_rms_norm(
            ELEMENT_TYPES[residual.dtype],
            residual.data_ptr(),
            None if values is None else values.data_ptr(),
            weight.data_ptr(),
            output.data_ptr(),
            residual.numel() // size,
            size,
            epsilon,
        )
        return output

    def normalize_heads(self, heads: Tensor, first: int, end: int, weight: Tensor, epsilon: float) -> None:
        """Heads [first, end) of heads [rows, num_heads, size] become their norms, scaled by weight [size], in place."""
        assert heads.is_contiguous()
        rows, num_heads, size = heads.shape
        self._normalize_heads(
            ELEMENT_TYPES[heads.dtype],
            heads[:, first:].data_ptr(),
            weight.data_ptr(),
            rows,
            end - first,
            num_heads * size,
            size,
            epsilon,
        )

    def sample(self, logits: Tensor, temperatures: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """One token, int64, for each row of logits [rows, size] float32 or bfloat16: the largest where temperatures
        [rows] is 0, else the one that a number of uniform [rows] float64 in [0, 1) draws from the softmax. And for each
        row whether its largest logit is finite: if not, the token means nothing."""
        assert logits.stride(1) == 1
        assert temperatures.dtype == torch.float32 and uniform.dtype == torch.float64
        rows, size = logits.shape
        tokens, is_finite = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.bool)
        self._sample(
            ELEMENT_TYPES[logits.dtype],
            logits.data_ptr(),
            rows,
            logits.stride(0),
            size,
            temperatures.data_ptr(),
            uniform.data_ptr(),
            tokens.data_ptr(),
            is_finite.data_ptr(),
        )
        return tokens, is_finite

    def attention(self) -> tuple[Callable[..., int], Callable[..., None]]:
        """The raw functions of attention.cpp: bytes of a block's keys for one KV head, and one layer's attention."""
        shape, batch = ctypes.POINTER(AttentionShape), ctypes.POINTER(AttentionBatch)
        block_bytes = self._function("engined_attention_block_bytes", [shape], _SIZE)
        return block_bytes, self._function("engined_attention", [shape, batch, *[_POINTER] * 5])

    def decoder(self, decoder: Any) -> tuple[Callable[..., int], Callable[..., None]]:
        """The raw functions of decoder.cpp, given the type of a pointer to its structure: bytes that a forward works
        in, and the forward."""
        workspace_bytes = self._function("engined_decoder_workspace", [decoder, _SIZE], _SIZE)
        batch = ctypes.POINTER(AttentionBatch)
        return workspace_bytes, self._function("engined_decoder_forward", [decoder, batch, *[_POINTER] * 4])

    def _function(self, name: str, argument_types: list[Any], result_type: Any = None) -> Callable[..., Any]:
        function = getattr(self._library, name)
        function.argtypes, function.restype = argument_types, result_type
        return function  # type: ignore[no-any-return]


def int4_blocks(in_features: int) -> int:
    """Blocks of a row of int4 weights; the last may be padded."""
    return -(-in_features // INT4_BLOCK)


def load_cpu_kernels(cache: Path, report_progress: ProgressReporter = report_nothing) -> CpuKernels | None:
    """The kernels, built first if need be; None, with a warning that says why, where that is not possible."""
    try:
        return open_cpu_kernels(cache, report_progress)
    except KernelError as error:
        logger.warning("computing with torch alone, which is slower: %s", error)
        return None


def open_cpu_kernels(cache: Path, report_progress: ProgressReporter = report_nothing) -> CpuKernels:
    """The kernels, built first if need be. Raises KernelError."""
    compiler = find_compiler()
    if compiler is None:
        raise KernelError("no g++ here to build the CPU kernels with: install g++")
    try:
        return CpuKernels(build(compiler, cache, machine_flags(), report_progress))
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().partition("\n")[0]
        raise KernelError(f"cannot build the CPU kernels: {reason}") from error
