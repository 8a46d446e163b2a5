"""The flat batch of one step as attention sees it. The model runner makes it; a backend prepares its own form.

Rank processes only.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMetadata:
    """Which tokens of the flat batch belong to which request, and where their keys and values lie.

    Requests with exactly one new token come first. All tensors hold int64 and lie on the CPU.
    """

    query_start_loc: Tensor
    """[num_reqs + 1]: tokens query_start_loc[i] to query_start_loc[i + 1] of the batch belong to request i."""
    seq_lens: Tensor
    """[num_reqs]: tokens of the request so far, those of this step included."""
    slot_mapping: Tensor
    """[num_tokens]: where the token's key and value are written: block id * block size + offset in the block."""
    block_table: Tensor
    """[num_reqs, max_blocks]: block ids of the request in order of its tokens; what is behind the last one is ignored,
    but must be a valid block id, for example 0."""
    num_decodes: int
    """Requests with exactly one new token: the first ones of the batch."""
    max_seq_len: int
    """Largest element of `seq_lens`."""
