"""Tokens that rows may not take, and tokens that they should like more: collected over the batch, applied at once."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engined.protocol.sampling import SamplingParams

_FORBIDDEN = float("-inf")


@dataclass(slots=True)
class _Cells:
    """Some cells of a table of logits."""

    rows: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def add(self, row: int, token_ids: list[int]) -> None:
        self.rows += [row] * len(token_ids)
        self.token_ids += token_ids

    def index(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(self.rows, dtype=torch.int64), torch.tensor(self.token_ids, dtype=torch.int64)


def apply_masks_and_bias(logits: torch.Tensor, params: list[SamplingParams], outputs: list[NDArray[np.int32]]) -> None:
    """Allowed ids, bad words, min_tokens, logit bias, in this order, in place on logits [S, V].

    `params` and `outputs` (tokens generated so far) belong to the S rows. Rows without any of these add no cell.
    """
    _apply_allowed(logits, params)
    forbidden, biased = _Cells(), _Cells()
    biases: list[float] = []
    for row, (row_params, output) in enumerate(zip(params, outputs, strict=True)):
        if row_params.bad_words_ids:
            forbidden.add(row, _last_tokens_of_begun_words(row_params.bad_words_ids, output))
        if len(output) < row_params.min_tokens:
            forbidden.add(row, sorted(row_params.all_stop_token_ids))
        if row_params.logit_bias:
            biased.add(row, [token_id for token_id, _ in row_params.logit_bias])
            biases += [bias for _, bias in row_params.logit_bias]
    if forbidden.rows:
        logits[forbidden.index()] = _FORBIDDEN
    if biased.rows:
        logits[biased.index()] += torch.tensor(biases)


def _apply_allowed(logits: torch.Tensor, params: list[SamplingParams]) -> None:
    rows = [row for row, row_params in enumerate(params) if row_params.allowed_token_ids is not None]
    if not rows:
        return
    allowed = _Cells()
    for row in rows:
        allowed.add(row, list(params[row].allowed_token_ids or ()))
    kept = logits[allowed.index()]
    logits[rows] = _FORBIDDEN
    logits[allowed.index()] = kept


def _last_tokens_of_begun_words(words: tuple[tuple[int, ...], ...], output: NDArray[np.int32]) -> list[int]:
    """The tokens that would complete a bad word whose beginning is the end of the output."""
    banned = []
    for *beginning, last in words:
        if not beginning or output[-len(beginning) :].tolist() == beginning:
            banned.append(last)
    return banned
