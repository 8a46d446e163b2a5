"""What tensor parallelism does to a model's sizes: which rank counts fit, how many bytes a rank holds. No torch.

The supervisor refuses a bad `--tp` and plans memory with it, before anything is loaded.
"""

from typing import Literal

from engined.checkpoint.model_info import EncoderInfo, ModelInfo
from engined.errors import ConfigError

_DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
# With the scales: one of 16 bits for 64 weights, and for int4 two more for 32.
_LINEAR_BITS = {"int8": 8.25, "int4": 5.25}


def supported_tensor_parallel_sizes(info: ModelInfo) -> list[int]:
    """Rank counts that divide the query heads, the KV heads and the MLP's inner size, in rising order."""
    return [
        size
        for size in range(1, info.num_kv_heads + 1)
        if not (info.num_kv_heads % size or info.num_attention_heads % size or info.intermediate_size % size)
    ]


def check_tensor_parallel_size(info: ModelInfo, size: int) -> None:
    """Raise ConfigError, naming the sizes that fit, if `size` ranks cannot share the model."""
    supported = supported_tensor_parallel_sizes(info)
    if size not in supported:
        raise ConfigError(
            f"--tensor-parallel-size {size} does not fit {info.name}, which has {info.num_attention_heads} query heads,"
            f" {info.num_kv_heads} KV heads and an MLP of {info.intermediate_size};"
            f" these fit: {', '.join(map(str, supported))}"
        )


def padded_vocab_size(vocab_size: int, tensor_parallel_size: int) -> int:
    """The vocabulary rounded up, so that every rank holds the same number of rows."""
    return -(-vocab_size // tensor_parallel_size) * tensor_parallel_size


def num_rank_parameters(info: ModelInfo, tensor_parallel_size: int = 1) -> int:
    """Elements of the weights that one rank holds."""
    hidden, size = info.hidden_size, tensor_parallel_size
    vocab_rows = padded_vocab_size(info.vocab_size, size) // size
    if info.encoder is not None:
        return vocab_rows * hidden + _num_encoder_parameters(info, info.encoder, size)
    vocab_tables = 1 if info.tie_word_embeddings or info.runner == "pooling" else 2
    return (
        vocab_rows * hidden * vocab_tables + info.num_layers * _num_layer_parameters(info, size) + hidden
    )  # the last term is the final norm


def _num_encoder_parameters(info: ModelInfo, encoder: EncoderInfo, size: int) -> int:
    """Without the table of the vocabulary."""
    hidden, inner = info.hidden_size, info.intermediate_size // size
    positions, norm = info.max_position + encoder.position_offset, 2 * hidden
    attention = 3 * (hidden // size) * (hidden + 1) + hidden // size * hidden + hidden
    mlp = inner * (hidden + 1) + inner * hidden + hidden
    head = (hidden + info.num_labels) * (hidden + 1) if info.num_labels else 0
    tables = (positions + encoder.type_vocab_size) * hidden
    return tables + norm + info.num_layers * (attention + mlp + 2 * norm) + head


def _num_layer_parameters(info: ModelInfo, size: int) -> int:
    hidden, inner = info.hidden_size, info.intermediate_size // size
    q_rows = info.num_attention_heads * info.head_dim // size
    kv_rows = info.num_kv_heads * info.head_dim // size
    attention = (q_rows + 2 * kv_rows) * (hidden + info.attention_bias) + q_rows * hidden
    mlp = 3 * inner * hidden + info.mlp_bias * (2 * inner + hidden)
    norms = 2 * hidden + info.has_qk_norm * 2 * info.head_dim
    return attention + info.attention_output_bias * hidden + mlp + norms


def weight_bytes(
    info: ModelInfo,
    dtype: Literal["bfloat16", "float32"],
    tensor_parallel_size: int = 1,
    quantization: Literal["none", "int8", "int4"] = "none",
) -> int:
    """Bytes of the weights that one rank holds, in `dtype`; those that layers multiply by as `quantization` says.

    A tied table with a head counts twice: it is looked up in one layout, and multiplied by in another.
    """
    num_parameters = num_rank_parameters(info, tensor_parallel_size)
    vocab_rows = padded_vocab_size(info.vocab_size, tensor_parallel_size) // tensor_parallel_size
    table = vocab_rows * info.hidden_size
    head = table if info.runner == "generate" else 0
    if head and info.tie_word_embeddings:
        num_parameters += head
    if quantization == "none":
        return num_parameters * _DTYPE_BYTES[dtype]
    # Norms and biases are so few that they may count as linear.
    linear = num_parameters - table - head
    bits = _LINEAR_BITS[quantization]
    return int(table * _DTYPE_BYTES[dtype] + (linear * bits + head * _LINEAR_BITS["int8"]) / 8)
