"""The blocks that the families share: self attention, the gated MLP, and the layer that joins them.

They call `forward` of their parts and not the parts themselves: it has a type, and skips the hooks of torch's modules,
which are felt at a single token.
"""

from torch import Tensor, nn

from engined.attention.layer import Attention
from engined.checkpoint.model_info import ModelInfo
from engined.layers.context import LayerContext
from engined.layers.linear import GatedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from engined.layers.norm import RMSNorm
from engined.layers.rotary import Rotation
from engined.layers.tensor_spec import TensorSpec


class SelfAttention(nn.Module):
    """Projections, rotary embedding and attention of one layer. A rank computes whole heads."""

    def __init__(
        self, info: ModelInfo, context: LayerContext, *, has_bias: bool, has_output_bias: bool, has_qk_norm: bool
    ) -> None:
        super().__init__()
        hidden_size, head_dim = info.hidden_size, info.head_dim
        head_counts = (info.num_attention_heads, info.num_kv_heads)
        self.head_dim = head_dim
        self.qkv_proj = QKVParallelLinear(hidden_size, head_counts, head_dim, has_bias, context)
        self.q_norm = RMSNorm(head_dim, info.rms_norm_eps, context) if has_qk_norm else None
        self.k_norm = RMSNorm(head_dim, info.rms_norm_eps, context) if has_qk_norm else None
        self.attention = Attention()
        self.o_proj = RowParallelLinear(info.num_attention_heads * head_dim, hidden_size, has_output_bias, context)

    def forward(self, hidden: Tensor, rotation: Rotation) -> Tensor:
        """hidden [num_tokens, hidden_size] -> the same shape"""
        heads = self.qkv_proj.forward(hidden).view(hidden.shape[0], -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            first_key, first_value = self.qkv_proj.num_heads, self.qkv_proj.num_heads + self.qkv_proj.num_kv_heads
            heads = self.q_norm.normalize_heads(heads, 0, first_key)
            heads = self.k_norm.normalize_heads(heads, first_key, first_value)
        return self.o_proj.forward(self.attention.forward(heads, rotation))

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the block."""
        specs = self.qkv_proj.tensor_specs([f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj"])
        if self.q_norm is not None and self.k_norm is not None:
            specs += self.q_norm.tensor_specs(f"{name}.q_norm") + self.k_norm.tensor_specs(f"{name}.k_norm")
        return specs + self.o_proj.tensor_specs(f"{name}.o_proj")


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, info: ModelInfo, context: LayerContext, *, has_bias: bool) -> None:
        super().__init__()
        inner = info.intermediate_size
        self.gate_up_proj = GatedColumnParallelLinear(info.hidden_size, inner, has_bias, context)
        self.down_proj = RowParallelLinear(inner, info.hidden_size, has_bias, context)

    def forward(self, hidden: Tensor) -> Tensor:
        """[num_tokens, hidden_size] -> the same shape"""
        return self.down_proj.forward(self.gate_up_proj.forward(hidden))

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the block."""
        gate_up = self.gate_up_proj.tensor_specs([f"{name}.gate_proj", f"{name}.up_proj"])
        return gate_up + self.down_proj.tensor_specs(f"{name}.down_proj")


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and around a residual stream."""

    def __init__(self, info: ModelInfo, context: LayerContext, self_attention: SelfAttention, mlp: GatedMLP) -> None:
        super().__init__()
        self.input_norm = RMSNorm(info.hidden_size, info.rms_norm_eps, context)
        self.self_attention = self_attention
        self.post_attention_norm = RMSNorm(info.hidden_size, info.rms_norm_eps, context)
        self.mlp = mlp

    def forward(self, stream: Tensor, update: Tensor | None, rotation: Rotation) -> Tensor:
        """`stream` [num_tokens, hidden_size] is the residual stream, to which `update`, from the layer before, is added
        in place; returns this layer's own update, which is still to be added."""
        attended = self.self_attention.forward(self.input_norm.add_and_norm(stream, update), rotation)
        return self.mlp.forward(self.post_attention_norm.add_and_norm(stream, attended))

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the layer."""
        return [
            *self.input_norm.tensor_specs(f"{name}.input_layernorm"),
            *self.self_attention.tensor_specs(f"{name}.self_attn"),
            *self.post_attention_norm.tensor_specs(f"{name}.post_attention_layernorm"),
            *self.mlp.tensor_specs(f"{name}.mlp"),
        ]
