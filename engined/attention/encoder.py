"""The attention of encoders: every token sees the whole sequence, so there is no past to keep. Rank processes only."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def attend_whole_sequences(queries: Tensor, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> Tensor:
    """Attend in both directions inside each sequence of the flat batch, and never across two.

    All three are [num_tokens, num_heads, head_dim]; sequence i has `lengths[i]` tokens, and the lengths add up to
    num_tokens. -> [num_tokens, num_heads * head_dim]. A sequence at a time: nothing is padded, and a sequence has the
    same numbers in every batch.
    """
    parts = zip(*(torch.split(tensor, list(lengths)) for tensor in (queries, keys, values)), strict=True)
    # SDPA wants [batch, heads, tokens, head_dim].
    attended = [F.scaled_dot_product_attention(*(x.transpose(0, 1).unsqueeze(0) for x in part)) for part in parts]
    return torch.cat([sequence[0].transpose(0, 1) for sequence in attended]).flatten(1)
