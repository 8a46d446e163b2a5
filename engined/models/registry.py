"""The table of model families, and the functions with which a rank makes its share of a model."""

from collections.abc import Callable

from engined.checkpoint.model_info import Architecture, ModelInfo
from engined.layers.context import LayerContext
from engined.models.bert import BertModel
from engined.models.causal_lm import CausalLM
from engined.models.llama import LlamaForCausalLM
from engined.models.qwen2 import Qwen2ForCausalLM
from engined.models.qwen3 import Qwen3ForCausalLM

DECODERS: dict[Architecture, Callable[[ModelInfo, LayerContext], CausalLM]] = {
    "llama": LlamaForCausalLM,
    "mistral": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}


def build_model(info: ModelInfo, context: LayerContext) -> CausalLM:
    """This rank's share of a decoder, with weights not yet loaded (`CausalLM.load` does it).

    `context.tp.size` must be one of `checkpoint.partition.supported_tensor_parallel_sizes`.
    """
    return DECODERS[info.architecture](info, context)


def build_encoder(info: ModelInfo, context: LayerContext) -> BertModel:
    """The same for an encoder; there is one family of them."""
    return BertModel(info, context)
