"""The table of model families, and `build_model`, with which a rank makes its share of a model."""

from collections.abc import Callable

import torch

from engined.checkpoint.model_info import Architecture, ModelInfo
from engined.layers.context import LayerContext
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.causal_lm import CausalLM
from engined.models.llama import LlamaForCausalLM
from engined.models.qwen2 import Qwen2ForCausalLM
from engined.models.qwen3 import Qwen3ForCausalLM

MODELS: dict[Architecture, Callable[[ModelInfo, LayerContext], CausalLM]] = {
    "llama": LlamaForCausalLM,
    "mistral": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}


def build_model(
    info: ModelInfo, dtype: torch.dtype, tp: TensorParallelGroup, device: torch.device | None = None
) -> CausalLM:
    """This rank's share of the model, with weights not yet loaded (`CausalLM.load` does it). Default device: the CPU.

    `tp.size` must be one of `checkpoint.partition.supported_tensor_parallel_sizes`.
    """
    context = LayerContext(dtype=dtype, device=device or torch.device("cpu"), tp=tp)
    return MODELS[info.architecture](info, context)
