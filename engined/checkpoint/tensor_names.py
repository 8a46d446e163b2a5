"""Names of the same tensor in a Hugging Face checkpoint and in a GGUF file. Workers and supervisor; no torch."""

import re

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HF_TO_GGUF = {hf: gguf for gguf, hf in (_TOP_LEVEL | _PER_LAYER).items()}
_HF_LAYER_TENSOR = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_GGUF_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def hf_tensor_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name that is not in the table stays as it is."""
    if gguf_name in _TOP_LEVEL:
        return _TOP_LEVEL[gguf_name]
    match = _GGUF_LAYER_TENSOR.fullmatch(gguf_name)
    if match is None or match[2] not in _PER_LAYER:
        return gguf_name
    return f"model.layers.{match[1]}.{_PER_LAYER[match[2]]}.{match[3]}"


def gguf_tensor_name(hf_name: str) -> str:
    """The GGUF name of a Hugging Face tensor; a name that is not in the table stays as it is."""
    if hf_name in _HF_TO_GGUF:
        return _HF_TO_GGUF[hf_name]
    match = _HF_LAYER_TENSOR.fullmatch(hf_name)
    if match is None or match[2] not in _HF_TO_GGUF:
        return hf_name
    return f"blk.{match[1]}.{_HF_TO_GGUF[match[2]]}.{match[3]}"
