"""Llama, and Mistral, which is Llama without biases and with a sliding window (the attention backend's business)."""

from engined.checkpoint.model_info import ModelInfo
from engined.layers.context import LayerContext
from engined.models.blocks import DecoderLayer, GatedMLP, SelfAttention
from engined.models.causal_lm import CausalLM


class LlamaForCausalLM(CausalLM):
    """Biases are as the config says; nearly all models have none."""

    def __init__(self, info: ModelInfo, context: LayerContext) -> None:
        super().__init__(info, context, [_layer(info, context) for _ in range(info.num_layers)])


def _layer(info: ModelInfo, context: LayerContext) -> DecoderLayer:
    attention = SelfAttention(
        info,
        context,
        has_bias=info.attention_bias,
        has_output_bias=info.attention_output_bias,
        has_qk_norm=False,
    )
    return DecoderLayer(info, context, attention, GatedMLP(info, context, has_bias=info.mlp_bias))
