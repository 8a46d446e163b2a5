"""Attention over the paged KV cache: the batch's metadata, the backends, the layer that uses them.

Rank processes only.
"""
