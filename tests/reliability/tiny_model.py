"""A model of a few thousand random parameters and a tokenizer of one token a byte: it loads as fast as a model can."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.end_to_end.byte_tokenizer import write_byte_tokenizer

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 32, 32, 1, 2, 2, 256, 2048
NUM_PRINTABLE = 94


def make(folder: Path) -> Path:
    """Write the model into `folder`; the same one each time."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    head_size = HIDDEN // HEADS

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0.0, 0.5, (rows, columns)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        tensors |= {
            f"model.layers.{layer}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"model.layers.{layer}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"model.layers.{layer}.self_attn.q_proj.weight": matrix(HEADS * head_size, HIDDEN),
            f"model.layers.{layer}.self_attn.k_proj.weight": matrix(KV_HEADS * head_size, HIDDEN),
            f"model.layers.{layer}.self_attn.v_proj.weight": matrix(KV_HEADS * head_size, HIDDEN),
            f"model.layers.{layer}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * head_size),
            f"model.layers.{layer}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"model.layers.{layer}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"model.layers.{layer}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    # Only printable ASCII is ever likely, so that each token is a piece of text of its own.
    tensors["lm_head.weight"][NUM_PRINTABLE:] = 0.0
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    return folder
