"""Hands a loaded decoder to the kernel that runs a whole forward at once. Rank processes.

It computes what `CausalLM.forward` computes layer by layer, with the same kernels in the same order and so with the
same bits, but starts its threads once and not at each operation.
"""

from collections.abc import Sequence

from torch import Tensor

from engined.attention.context import get_forward_context
from engined.attention.cpu_kernel import CpuKernelAttention, PreparedBatch
from engined.kernels.cpu.decoder import DecoderKernel, LayerTensors
from engined.kernels.cpu.library import CpuKernels, PackedLinear
from engined.layers.context import LayerContext
from engined.layers.dense_weight import KernelWeightMethod
from engined.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from engined.layers.norm import RMSNorm
from engined.layers.rotary import Rotation
from engined.models.blocks import DecoderLayer


class FusedDecoder:
    """The layers and the final norm of a loaded model, whose KV caches are bound."""

    def __init__(
        self,
        kernels: CpuKernels,
        backend: CpuKernelAttention,
        layers: Sequence[DecoderLayer],
        final_norm: RMSNorm,
    ) -> None:
        shape = backend.shape(layers[0].self_attention.attention.kv_cache)
        tensors = [_tensors(layer) for layer in layers]
        self._backend = backend
        self._kernel = DecoderKernel(kernels, shape, tensors, final_norm.weight, final_norm.epsilon)

    def forward(self, stream: Tensor, rotation: Rotation) -> Tensor:
        """Embeddings [num_tokens, hidden_size], which are overwritten, of the batch in the forward context -> hidden
        states of the same shape, after the final norm."""
        prepared: PreparedBatch = get_forward_context().prepared_by(self._backend)
        return self._kernel.forward(stream, rotation.angles, prepared.batch)


def fuse(layers: Sequence[DecoderLayer], final_norm: RMSNorm, context: LayerContext) -> FusedDecoder | None:
    """None where some part is not computed by our kernels, or where ranks must talk in between."""
    kernels = context.kernels_for(final_norm.size)
    backend = layers[0].self_attention.attention.backend
    if kernels is None or context.tp.size > 1 or not isinstance(backend, CpuKernelAttention):
        return None
    return FusedDecoder(kernels, backend, layers, final_norm) if all(map(_is_fusable, layers)) else None


def _is_fusable(layer: DecoderLayer) -> bool:
    attention, mlp = layer.self_attention, layer.mlp
    linears = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    return all(isinstance(linear.weight, KernelWeightMethod) for linear in linears)


def _tensors(layer: DecoderLayer) -> LayerTensors:
    attention, mlp = layer.self_attention, layer.mlp
    return LayerTensors(
        input_norm=layer.input_norm.weight,
        qkv=_linear(attention.qkv_proj),
        query_norm=None if attention.q_norm is None else attention.q_norm.weight,
        key_norm=None if attention.k_norm is None else attention.k_norm.weight,
        attention_output=_linear(attention.o_proj),
        post_attention_norm=layer.post_attention_norm.weight,
        gate_up=_linear(mlp.gate_up_proj),
        down=_linear(mlp.down_proj),
        keys=attention.attention.kv_cache.keys,
        values=attention.attention.kv_cache.values,
    )


def _linear(linear: MergedColumnParallelLinear | RowParallelLinear) -> tuple[PackedLinear, Tensor | None]:
    method = linear.weight
    assert isinstance(method, KernelWeightMethod)
    return method.packed, linear.bias
