"""Decides what "auto" means for the types of weights and of the KV cache. Used by the supervisor and check-config."""

from pathlib import Path
from typing import Literal

from engined.config.resources import cpu_flags
from engined.config.schema import CacheConfig, ModelConfig

ComputeDtype = Literal["bfloat16", "float32"]
StoredDtype = Literal["bfloat16", "float32", "int8"]
"""Of the KV cache. int8 has a scale, a float32, for each token and head, of keys and of values."""

# Instructions that multiply bfloat16; elsewhere torch emulates it and float32 is faster.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})

DTYPE_BYTES: dict[StoredDtype, int] = {"bfloat16": 2, "float32": 4, "int8": 1}
SCALE_BYTES: dict[StoredDtype, int] = {"bfloat16": 0, "float32": 0, "int8": 4}


def resolve_dtype(model: ModelConfig, root: Path = Path("/")) -> ComputeDtype:
    """Type of weights and activations: as configured, or bfloat16 where the CPU computes in it, else float32.

    With quantized weights activations are bfloat16 everywhere.
    """
    if model.dtype != "auto":
        return model.dtype
    if model.quantization != "none":
        return "bfloat16"
    return "bfloat16" if cpu_flags(root) & _BFLOAT16_FLAGS else "float32"


def resolve_kv_cache_dtype(cache: CacheConfig, dtype: ComputeDtype) -> StoredDtype:
    """Type of the KV cache: as configured, or that of the weights."""
    return dtype if cache.kv_cache_dtype == "auto" else cache.kv_cache_dtype
