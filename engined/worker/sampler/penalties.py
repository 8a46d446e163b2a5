"""Repetition, frequency and presence penalties. Only rows that ask for one keep counts and pay for it."""

import numpy as np
import torch
from numpy.typing import NDArray

from engined.protocol.sampling import SamplingParams


def has_penalty(params: SamplingParams) -> bool:
    """Whether any of the three penalties does something."""
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


class TokenCounts:
    """What one request has seen of each token, kept up to date as it generates."""

    def __init__(self, prompt: NDArray[np.int32], output: NDArray[np.int32], vocab_size: int) -> None:
        self.in_prompt = torch.zeros(vocab_size, dtype=torch.bool)  # [V]
        self.in_prompt[torch.from_numpy(prompt.astype(np.int64))] = True
        self.output = torch.from_numpy(np.bincount(output, minlength=vocab_size).astype(np.float32))  # [V]

    def add(self, token_id: int) -> None:
        """Count one generated token."""
        self.output[token_id] += 1


def apply_penalties(logits: torch.Tensor, params: SamplingParams, counts: TokenCounts) -> None:
    """Change one row of logits [V] in place.

    Repetition (Keskar et al. 2019, https://arxiv.org/abs/1909.05858) divides positive logits of seen tokens and
    multiplies negative ones, over prompt and output; the other two are OpenAI's, over the output only.
    """
    generated = counts.output > 0
    if params.repetition_penalty != 1.0:
        seen = counts.in_prompt | generated
        factor = params.repetition_penalty
        logits.copy_(torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits))
    if params.frequency_penalty != 0.0:
        logits.sub_(counts.output, alpha=params.frequency_penalty)
    if params.presence_penalty != 0.0:
        logits.sub_(generated.to(logits.dtype), alpha=params.presence_penalty)
