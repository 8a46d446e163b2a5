"""Tokens that a row may not take, and tokens that it should like more: applied to one row of logits, in place."""

import numpy as np
import torch
from numpy.typing import NDArray

from engined.protocol.sampling import SamplingParams

_FORBIDDEN = float("-inf")


def has_mask_or_bias(params: SamplingParams, num_output_tokens: int) -> bool:
    """Whether `apply_masks_and_bias` would change anything."""
    return (
        params.allowed_token_ids is not None
        or bool(params.bad_words_ids)
        or bool(params.logit_bias)
        or num_output_tokens < params.min_tokens
    )


def apply_masks_and_bias(logits: torch.Tensor, params: SamplingParams, output: NDArray[np.int32]) -> None:
    """Allowed ids, bad words, min_tokens, logit bias, in this order, on one row [V] whose output so far is given."""
    if params.allowed_token_ids is not None:
        allowed = torch.tensor(params.allowed_token_ids)
        kept = logits[allowed]
        logits.fill_(_FORBIDDEN)
        logits[allowed] = kept
    if params.bad_words_ids:
        banned = _last_tokens_of_begun_words(params.bad_words_ids, output)
        logits[torch.tensor(banned, dtype=torch.int64)] = _FORBIDDEN
    if len(output) < params.min_tokens:
        logits[torch.tensor(sorted(params.all_stop_token_ids), dtype=torch.int64)] = _FORBIDDEN
    if params.logit_bias:
        token_ids, biases = zip(*params.logit_bias, strict=True)
        logits[torch.tensor(token_ids)] += torch.tensor(biases)


def _last_tokens_of_begun_words(words: tuple[tuple[int, ...], ...], output: NDArray[np.int32]) -> list[int]:
    """The tokens that would complete a bad word whose beginning is the end of the output."""
    banned = []
    for *beginning, last in words:
        if not beginning or output[-len(beginning) :].tolist() == beginning:
            banned.append(last)
    return banned
