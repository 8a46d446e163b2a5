"""Names of GGUF and Hugging Face tensors are translated both ways."""

import pytest

from engined.checkpoint.tensor_names import gguf_tensor_name, hf_tensor_name


@pytest.mark.parametrize(
    ("gguf_name", "hf_name"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.11.attn_q.bias", "model.layers.11.self_attn.q_proj.bias"),
        ("blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight"),
        ("rope_freqs.weight", "rope_freqs.weight"),
        ("blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp.weight"),
    ],
)
def test_both_ways(gguf_name: str, hf_name: str) -> None:
    assert hf_tensor_name(gguf_name) == hf_name
    assert gguf_tensor_name(hf_name) == gguf_name
