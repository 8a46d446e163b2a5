"""How the memory is divided between weights and KV cache, and the longest context that this allows.

Computed before a weight is loaded; the supervisor and check-config use the same function.
"""

from dataclasses import dataclass

from engined.checkpoint.model_info import ModelInfo
from engined.checkpoint.partition import weight_bytes
from engined.config.dtype import DTYPE_BYTES, SCALE_BYTES, ComputeDtype, StoredDtype, resolve_kv_cache_dtype
from engined.config.schema import Config
from engined.config.units import format_bytes
from engined.errors import ConfigError

DEFAULT_KV_CACHE_SHARE = 0.30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Sizes are bytes, over all ranks together."""

    dtype: ComputeDtype
    kv_cache_dtype: StoredDtype
    available: int
    """Free before anything is loaded."""
    weights: int
    kv_bytes_per_token: int
    kv_cache: int
    """A whole number of blocks."""
    num_kv_blocks: int
    longest_context: int
    """Tokens that the KV cache (for an encoder: one step) and the model's positions hold for one request."""
    max_model_len: int
    """What is served: as configured, else the longest context, or less if the model's author used less."""


def plan_memory(config: Config, info: ModelInfo, dtype: ComputeDtype, available: int) -> MemoryPlan:
    """Divide `available` bytes.

    Raises ConfigError if the weights do not fit, or the KV cache cannot hold one block or `--max-model-len` tokens;
    the message says what is needed, what is there, and what to set.
    """
    tensor_parallel_size, quantization = config.parallel.tensor_parallel_size, config.model.quantization
    kv_cache_dtype = resolve_kv_cache_dtype(config.cache, dtype)
    weights = weight_bytes(info, dtype, tensor_parallel_size, quantization) * tensor_parallel_size
    if weights >= available:
        held_as = dtype if quantization == "none" else quantization
        raise ConfigError(
            f"the weights of {info.name} need {format_bytes(weights)} as {held_as}, but only {format_bytes(available)} "
            "of memory is free: free some, set --dtype bfloat16 or --quantization int8, or serve a smaller model"
        )
    if info.encoder is not None:
        return _plan_encoder(config, info, dtype, available, weights)
    per_token = _kv_bytes_per_token(info, kv_cache_dtype)
    budget = _kv_cache_budget(config, available - weights)
    block_size = config.cache.block_size
    num_blocks = budget // (per_token * block_size)
    longest = min(num_blocks * block_size, info.max_position)
    wanted = config.model.max_model_len
    if num_blocks == 0 or (wanted is not None and wanted > longest):
        raise ConfigError(_too_long(max(wanted or 0, block_size), longest, per_token, budget, block_size))
    return MemoryPlan(
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        available=available,
        weights=weights,
        kv_bytes_per_token=per_token,
        kv_cache=num_blocks * block_size * per_token,
        num_kv_blocks=num_blocks,
        longest_context=longest,
        max_model_len=min(longest, info.default_max_len) if wanted is None else wanted,
    )


def _plan_encoder(config: Config, info: ModelInfo, dtype: ComputeDtype, available: int, weights: int) -> MemoryPlan:
    """No KV cache; a sequence may be as long as a step is large."""
    longest = min(config.scheduler.max_num_batched_tokens, info.max_position)
    return MemoryPlan(
        dtype=dtype,
        kv_cache_dtype=dtype,
        available=available,
        weights=weights,
        kv_bytes_per_token=0,
        kv_cache=0,
        num_kv_blocks=0,
        longest_context=longest,
        max_model_len=config.model.max_model_len or min(longest, info.default_max_len),
    )


def _kv_bytes_per_token(info: ModelInfo, kv_cache_dtype: StoredDtype) -> int:
    """Keys and values of one token in all layers; ranks share the KV heads, so their number does not matter."""
    head_bytes = info.head_dim * DTYPE_BYTES[kv_cache_dtype] + SCALE_BYTES[kv_cache_dtype]
    return 2 * info.num_layers * info.num_kv_heads * head_bytes


def _kv_cache_budget(config: Config, free: int) -> int:
    """Bytes for the KV cache, out of the `free` ones beside the weights."""
    wanted = config.cache.kv_cache_memory
    if wanted is None:
        return int(free * DEFAULT_KV_CACHE_SHARE)
    if wanted > free:
        raise ConfigError(
            f"--kv-cache-memory {format_bytes(wanted)} is more than the {format_bytes(free)} that are free beside the "
            "weights: set less"
        )
    return wanted


def _too_long(wanted: int, longest: int, per_token: int, budget: int, block_size: int) -> str:
    needed = -(-wanted // block_size) * block_size * per_token
    remedy = f"set --max-model-len {longest} or less, or " if longest else "free some memory, or "
    return (
        f"a context of {wanted} tokens needs {format_bytes(needed)} of KV cache ({per_token} bytes a token), but the "
        f"KV cache has {format_bytes(budget)}, enough for {longest} tokens: {remedy}set --kv-cache-memory {needed}"
    )
