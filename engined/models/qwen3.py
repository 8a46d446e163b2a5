"""Qwen3 (dense): queries and keys are normed head by head before the rotary embedding; the head size is free."""

from engined.checkpoint.model_info import ModelInfo
from engined.layers.context import LayerContext
from engined.models.blocks import DecoderLayer, GatedMLP, SelfAttention
from engined.models.causal_lm import CausalLM


class Qwen3ForCausalLM(CausalLM):
    """Biases of the attention are as the config says; released models have none."""

    def __init__(self, info: ModelInfo, context: LayerContext) -> None:
        super().__init__(info, context, [_layer(info, context) for _ in range(info.num_layers)])


def _layer(info: ModelInfo, context: LayerContext) -> DecoderLayer:
    attention = SelfAttention(
        info,
        context,
        has_bias=info.attention_bias,
        has_output_bias=info.attention_output_bias,
        has_qk_norm=True,
    )
    return DecoderLayer(info, context, attention, GatedMLP(info, context, has_bias=False))
