"""min_p, top_k and top_p: which tokens a row may still draw. Works on many rows at once."""

import torch

_DROPPED = float("-inf")


def apply_min_p(logits: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Drop tokens less probable than min_p [S] times the best token of their row; logits [S, V] are already scaled
    by temperature. 0 keeps all."""
    # p < min_p * p_max is a plain comparison of logits: log p - log p_max < log min_p.
    threshold = logits.amax(dim=-1, keepdim=True) + torch.log(min_p).unsqueeze(-1)
    return logits.masked_fill(logits < threshold, _DROPPED)


def apply_top_k_top_p(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the top_k [S] (int64, 0: all) best tokens, ties with the last one included, and of those the smallest set
    whose probability reaches top_p [S]. logits [S, V]; at least one token is kept in each row."""
    ordered, order = logits.sort(dim=-1, descending=True)
    last_kept = torch.where(top_k > 0, top_k.clamp(max=logits.shape[-1]), logits.shape[-1]) - 1
    threshold = ordered.gather(-1, last_kept.unsqueeze(-1))
    ordered = ordered.masked_fill(ordered < threshold, _DROPPED)
    probabilities = ordered.softmax(dim=-1)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    # The first token has no mass before it; the comparison keeps it even when rounding says otherwise.
    dropped = mass_before >= top_p.unsqueeze(-1)
    dropped[:, 0] = False
    ordered = ordered.masked_fill(dropped, _DROPPED)
    return torch.empty_like(logits).scatter_(-1, order, ordered)
