"""Qwen2 and Qwen2.5: query, key and value projections have a bias, the output projection has none."""

from engined.checkpoint.model_info import ModelInfo
from engined.layers.context import LayerContext
from engined.models.blocks import DecoderLayer, GatedMLP, SelfAttention
from engined.models.causal_lm import CausalLM


class Qwen2ForCausalLM(CausalLM):
    """The bias is part of the family, not of the config."""

    def __init__(self, info: ModelInfo, context: LayerContext) -> None:
        super().__init__(info, context, [_layer(info, context) for _ in range(info.num_layers)])


def _layer(info: ModelInfo, context: LayerContext) -> DecoderLayer:
    attention = SelfAttention(info, context, has_bias=True, has_output_bias=False, has_qk_norm=False)
    return DecoderLayer(info, context, attention, GatedMLP(info, context, has_bias=False))
