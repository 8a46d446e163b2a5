"""`ModelInfo` of a GGUF file, from its metadata. Supervisor; no torch.

GGUF has one architecture "llama" for Llama and for Mistral. Rotary scaling of Llama 3 is not in the metadata but in a
tensor of frequency factors, so it is recognised by its values.
"""

import math
import struct
from typing import Any, Literal

from engined.checkpoint.fields import Fields
from engined.checkpoint.ggml_types import SUPPORTED_GGML_TYPES
from engined.checkpoint.gguf import GgufArray, GgufFile
from engined.checkpoint.model_info import Architecture, ModelInfo, PoolingType, RopeScaling
from engined.checkpoint.rope import frequency_factors
from engined.checkpoint.safetensors_file import FloatDtype
from engined.errors import CheckpointError, UnsupportedModelError

GGUF_ARCHITECTURES: dict[str, Architecture] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
GGUF_TOKENIZERS = ("gpt2", "llama")

# Tokens that end a turn in the chat formats that we know. Files often declare another one, or none, as EOS.
END_OF_TURN_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|eot|>",
    "<EOT>",
)
_CONTROL_TOKEN = 3
_FLOAT_TYPES: dict[str, FloatDtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ROPE_FACTORS = "rope_freqs.weight"

_POOLING_TYPES: dict[int, PoolingType] = {1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's numbers; other ones mean that the model generates."""
_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def read_gguf_model_info(file: GgufFile) -> ModelInfo:
    """Read the `ModelInfo` of an open file; see `load_model_info` for the errors."""
    metadata = Fields(str(file.path), file.metadata)
    prefix, architecture = _architecture(metadata)
    _refuse_unsupported(file, metadata, prefix)
    num_heads = metadata.size(f"{prefix}.attention.head_count")
    hidden_size = metadata.size(f"{prefix}.embedding_length")
    head_dim = metadata.size(f"{prefix}.attention.key_length", default=hidden_size // num_heads)
    tokens = _tokens(metadata)
    _check_rotary_dimension(metadata, prefix, head_dim)
    rope_theta = metadata.number(f"{prefix}.rope.freq_base", default=10000.0)
    pooling = metadata.get(f"{prefix}.pooling_type")
    pooling_type = _POOLING_TYPES.get(pooling) if isinstance(pooling, int) else None
    return ModelInfo(
        path=str(file.path),
        name=file.path.stem,
        checkpoint_format="gguf",
        architecture=architecture,
        vocab_size=len(tokens),
        hidden_size=hidden_size,
        intermediate_size=metadata.size(f"{prefix}.feed_forward_length"),
        num_layers=metadata.size(f"{prefix}.block_count"),
        num_attention_heads=num_heads,
        num_kv_heads=metadata.size(f"{prefix}.attention.head_count_kv", default=num_heads),
        head_dim=head_dim,
        max_position=metadata.size(f"{prefix}.context_length"),
        rms_norm_eps=metadata.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        rope_theta=rope_theta,
        rope_scaling=_rope_scaling(file, metadata, prefix, head_dim, rope_theta),
        sliding_window=metadata.optional_size(f"{prefix}.attention.sliding_window"),
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        attention_output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        has_qk_norm=architecture == "qwen3",
        tie_word_embeddings="output.weight" not in file.tensors,
        checkpoint_dtype=_main_dtype(file),
        num_parameters=sum(math.prod(t.shape) for name, t in file.tensors.items() if name != _ROPE_FACTORS),
        bos_token_id=metadata.token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_eos_token_ids(metadata, tokens),
        runner="generate" if pooling_type is None else "pooling",
        pooling_type=pooling_type,
        generation_defaults=_generation_defaults(metadata),
    )


def _architecture(metadata: Fields) -> tuple[str, Architecture]:
    """The prefix of the model's keys, and our name of its family."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"{metadata.source}: 'general.architecture' is missing")
    if name not in GGUF_ARCHITECTURES:
        supported = ", ".join(GGUF_ARCHITECTURES)
        raise UnsupportedModelError(f"{metadata.source}: GGUF architecture {name!r} is not supported ({supported} are)")
    return name, GGUF_ARCHITECTURES[name]


def _refuse_unsupported(file: GgufFile, metadata: Fields, prefix: str) -> None:
    """Refuse what would silently change the results if it were ignored."""
    tokenizer = metadata.get("tokenizer.ggml.model")
    if tokenizer not in GGUF_TOKENIZERS:
        raise UnsupportedModelError(
            f"{file.path}: GGUF tokenizer {tokenizer!r} is not supported ({', '.join(GGUF_TOKENIZERS)} are)"
        )
    if metadata.get(f"{prefix}.expert_count"):
        raise UnsupportedModelError(f"{file.path}: mixtures of experts are not supported (dense models are)")
    if metadata.get("split.count") not in (None, 0, 1):
        raise UnsupportedModelError(
            f"{file.path}: GGUF files split into parts are not supported; join them with llama-gguf-split --merge"
        )
    for tensor in file.tensors.values():
        if tensor.type_name not in SUPPORTED_GGML_TYPES:
            raise UnsupportedModelError(
                f"{file.path}: tensor {tensor.name!r} has type {tensor.type_name}, which is not supported"
                f" ({', '.join(SUPPORTED_GGML_TYPES)} are)"
            )


def _check_rotary_dimension(metadata: Fields, prefix: str, head_dim: int) -> None:
    for key in (f"{prefix}.rope.dimension_count", f"{prefix}.attention.value_length"):
        size = metadata.size(key, default=head_dim)
        if size != head_dim:
            raise UnsupportedModelError(
                f"{metadata.source}: {key} {size} differs from the head size {head_dim}, which is not supported"
            )


def _tokens(metadata: Fields) -> GgufArray:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, GgufArray) or not len(tokens):
        raise CheckpointError(f"{metadata.source}: 'tokenizer.ggml.tokens' is missing")
    return tokens


def _rope_scaling(
    file: GgufFile, metadata: Fields, prefix: str, head_dim: int, rope_theta: float
) -> RopeScaling | None:
    if _ROPE_FACTORS in file.tensors:
        return _llama3_scaling(file, head_dim, rope_theta)
    kind = metadata.get(f"{prefix}.rope.scaling.type") or "none"
    if kind == "none":
        return None
    if kind == "linear":
        factor = metadata.number(f"{prefix}.rope.scaling.factor", default=1.0)
        return None if factor == 1.0 else RopeScaling(kind="linear", factor=factor)
    raise UnsupportedModelError(f"{file.path}: rope scaling {kind!r} is not supported (linear and llama3 are)")


def _llama3_scaling(file: GgufFile, head_dim: int, rope_theta: float) -> RopeScaling:
    """The llama3 scaling whose frequency factors are those of the file. All Llama 3 models differ in `factor` only,
    which is the largest frequency factor."""
    tensor = file.tensors[_ROPE_FACTORS]
    if tensor.type_name != "F32" or tensor.shape != (head_dim // 2,):
        raise CheckpointError(
            f"{file.path}: {_ROPE_FACTORS} must be F32 of shape ({head_dim // 2},),"
            f" but is {tensor.type_name} of shape {tensor.shape}"
        )
    factors = struct.unpack(f"<{head_dim // 2}f", file.raw(_ROPE_FACTORS))
    scaling = RopeScaling(kind="llama3", factor=max(factors))
    if scaling.factor > 0:
        expected = frequency_factors(scaling, head_dim, rope_theta)
        if all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(factors, expected, strict=True)):
            return scaling
    raise UnsupportedModelError(f"{file.path}: the frequency factors in {_ROPE_FACTORS} are not those of Llama 3")


def _main_dtype(file: GgufFile) -> Literal["bfloat16", "float16", "float32", "quantized"]:
    """The dtype of most elements, or "quantized"."""
    counts: dict[str, int] = {}
    for tensor in file.tensors.values():
        counts[tensor.type_name] = counts.get(tensor.type_name, 0) + math.prod(tensor.shape)
    main = max(counts, key=lambda name: counts[name], default="F32")
    return _FLOAT_TYPES.get(main, "quantized")


def _eos_token_ids(metadata: Fields, tokens: GgufArray) -> tuple[int, ...]:
    """Declared end tokens, then end-of-turn tokens that the vocabulary marks as control tokens."""
    declared = [
        token_id
        for key in ("eos_token_id", "eot_token_id", "eom_token_id")
        for token_id in metadata.token_ids(f"tokenizer.ggml.{key}")
    ]
    types = metadata.get("tokenizer.ggml.token_type")
    if isinstance(types, GgufArray) and len(types) == len(tokens):
        wanted = set(END_OF_TURN_TOKENS)
        control_ids = [token_id for token_id, kind in enumerate(types) if kind == _CONTROL_TOKEN]
        declared += [token_id for token_id in control_ids if tokens[token_id] in wanted]
    return tuple(dict.fromkeys(token_id for token_id in declared if token_id < len(tokens)))


def _generation_defaults(metadata: Fields) -> dict[str, Any] | None:
    """Sampling settings of the file, by the names of generation_config.json."""
    defaults = {
        name: value
        for key, name in _SAMPLING_KEYS.items()
        if isinstance(value := metadata.get(key), (int, float)) and not isinstance(value, bool)
    }
    return defaults or None
