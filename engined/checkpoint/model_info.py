"""What a model is, read from its own files: the facts that every process needs before a weight is loaded.

The supervisor reads a `ModelInfo` once (`engined.checkpoint.load`) and hands it to its children.
"""

from dataclasses import dataclass
from typing import Any, Literal

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]
CheckpointFormat = Literal["safetensors", "gguf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Scaling of the rotary frequencies. `linear` divides them by `factor`; `llama3` does so by wave length."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Shape, vocabulary facts and generation defaults of one model. Sizes count elements; rotary values are those of
    the Hugging Face config."""

    path: str
    """Folder (safetensors) or file (gguf)."""
    name: str
    """Short name made from the path; what clients call the model unless they are told otherwise."""
    checkpoint_format: CheckpointFormat
    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    attention_bias: bool = False
    """Whether q, k and v projections have a bias."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    has_qk_norm: bool = False
    tie_word_embeddings: bool = False
    checkpoint_dtype: Literal["bfloat16", "float16", "float32", "quantized"] = "bfloat16"
    num_parameters: int = 0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Union of what config, generation_config and tokenizer declare, and of known end-of-turn tokens of a GGUF."""
    generation_defaults: dict[str, Any] | None = None
    """Sampling fields of generation_config.json (temperature, top_p, ...); they apply where a request is silent."""
