"""The attention layer of a model: writes this step's keys and values to the cache, then attends over it."""

from torch import Tensor, nn

from engined.attention.backend import AttentionBackend, KVCache
from engined.attention.context import get_forward_context


class Attention(nn.Module):
    """Causal attention of one layer over its paged KV cache. The model runner binds backend and cache before the first
    forward."""

    backend: AttentionBackend
    kv_cache: KVCache

    def bind(self, backend: AttentionBackend, kv_cache: KVCache) -> None:
        """Use `backend`, which the layers share, and `kv_cache`, which is this layer's alone."""
        self.backend = backend
        self.kv_cache = kv_cache

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """queries [num_tokens, num_heads, head_dim], keys and values [num_tokens, num_kv_heads, head_dim], of the batch
        in the forward context -> [num_tokens, num_heads * head_dim]"""
        prepared = get_forward_context().prepared_by(self.backend)
        self.backend.write(keys, values, self.kv_cache, prepared)
        return self.backend.attend(queries, self.kv_cache, prepared).flatten(1)
