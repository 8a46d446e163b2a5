"""Small models with random weights, made by transformers: one maker for each variant that we claim to serve."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_SCALING = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

VARIANTS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama-tied": LlamaConfig(**SIZES | {"tie_word_embeddings": True}),
    "llama-biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-mha": LlamaConfig(**SIZES | {"num_key_value_heads": 6}),
    "llama-head-dim": LlamaConfig(**SIZES, head_dim=16),
    "llama3-rope": LlamaConfig(**SIZES, rope_parameters=LLAMA3_SCALING),
    "llama-linear-rope": LlamaConfig(**SIZES, rope_parameters=LINEAR_SCALING),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": MistralConfig(**SIZES, sliding_window=7),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-tied": Qwen2Config(**SIZES | {"tie_word_embeddings": True}),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3-tied": Qwen3Config(**SIZES | {"tie_word_embeddings": True}, head_dim=16),
}


def make_reference(variant: str | PreTrainedConfig) -> Any:
    """The transformers model of a variant, float32, with weights large enough for differences to show."""
    config = VARIANTS[variant] if isinstance(variant, str) else variant
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if name.endswith("bias") or "norm" in name else 0.12
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


def save(model: Any, folder: Path, max_shard_size: str = "1GB") -> Path:
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """[num_tokens, vocab]"""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits
