"""What a model is, read from its own files: the facts that every process needs before a weight is loaded.

The supervisor reads a `ModelInfo` once (`engined.checkpoint.load`) and hands it to its children.
"""

from dataclasses import dataclass
from typing import Any, Literal

Architecture = Literal["llama", "mistral", "qwen2", "qwen3", "bert", "roberta"]
CheckpointFormat = Literal["safetensors", "gguf"]
PoolingType = Literal["mean", "cls", "last"]
ScoreActivation = Literal["sigmoid", "identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Scaling of the rotary frequencies. `linear` divides them by `factor`; `llama3` does so by wave length."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInfo:
    """What only an encoder has. Its attention sees the whole sequence, so it needs no KV cache."""

    layer_norm_eps: float
    type_vocab_size: int
    """Kinds of segments, for models that read pairs of texts."""
    position_offset: int = 0
    """Row of the position table that belongs to the first token."""
    score_activation: ScoreActivation = "identity"
    """What the outputs of a classification head go through."""


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
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
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
    runner: Literal["generate", "pooling"] = "generate"
    """Whether the model answers with tokens, or with an embedding or a score."""
    pooling_type: PoolingType | None = None
    """How the states of a sequence become one; None for a model that generates."""
    num_labels: int = 0
    """Outputs of the classification head of a pooling model; 0 means that its result is the embedding."""
    normalizes_embeddings: bool = True
    """Whether its author scales embeddings to length 1, which is what we do if nothing is said."""
    is_matryoshka: bool = False
    """Whether its embeddings were trained to be shortened."""
    matryoshka_dimensions: tuple[int, ...] = ()
    """The lengths that it was trained for; empty if it was for any."""
    max_sequence_length: int | None = None
    """Tokens up to which its author used it, where that is less than its positions."""
    encoder: EncoderInfo | None = None
    """Given for models whose attention sees the whole sequence; None for decoders."""
    generation_defaults: dict[str, Any] | None = None
    """Sampling fields of generation_config.json (temperature, top_p, ...); they apply where a request is silent."""

    @property
    def default_max_len(self) -> int:
        """Tokens of a sequence that are served unless the operator says otherwise, if there is room for them."""
        return min(self.max_position, self.max_sequence_length or self.max_position)
