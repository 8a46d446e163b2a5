"""The attention layer of a model: writes this step's keys and values to the cache, then attends over it."""

from torch import Tensor, nn

from engined.attention.backend import AttentionBackend, KVCache
from engined.attention.context import get_forward_context
from engined.layers.rotary import Rotation


class Attention(nn.Module):
    """Causal attention of one layer over its paged KV cache. The model runner binds backend and cache before the first
    forward."""

    backend: AttentionBackend
    kv_cache: KVCache

    def bind(self, backend: AttentionBackend, kv_cache: KVCache) -> None:
        """Use `backend`, which the layers share, and `kv_cache`, which is this layer's alone."""
        self.backend = backend
        self.kv_cache = kv_cache

    def forward(self, heads: Tensor, rotation: Rotation) -> Tensor:
        """heads [num_tokens, num_heads + 2 * num_kv_heads, head_dim], contiguous: queries, keys and values, not yet
        rotated, of the batch in the forward context; they may be overwritten -> [num_tokens, num_heads * head_dim]"""
        prepared = get_forward_context().prepared_by(self.backend)
        return self.backend.forward(heads, rotation, self.kv_cache, prepared).flatten(1)
