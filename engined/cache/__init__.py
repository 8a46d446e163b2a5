"""Bookkeeping of the paged KV cache: which block belongs to whom, and which can be reused. Pure Python, no tensors."""
