"""Repetition, frequency and presence penalties, over all rows of the batch that ask for one."""

import numpy as np
import torch
from numpy.typing import NDArray

from engined.protocol.sampling import SamplingParams


class TokenCounts:
    """What the requests with a penalty have seen of each token, by batch row. R rows, V tokens of the vocabulary.

    The tables are made when the first such request comes, and their pages are touched by the rows in use only.
    """

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._shape = (num_rows, vocab_size)
        self._in_prompt = torch.empty(0)  # [R, V] bool
        self._in_output = torch.empty(0)  # [R, V] float32
        self._rows: set[int] = set()

    @property
    def rows(self) -> frozenset[int]:
        """Batch rows that are counted."""
        return frozenset(self._rows)

    def add_row(self, row: int, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> None:
        """Begin to count a row, with the prompt and the output that it has already."""
        if not self._rows and self._in_prompt.numel() == 0:
            self._in_prompt = torch.from_numpy(np.zeros(self._shape, dtype=np.bool_))
            self._in_output = torch.from_numpy(np.zeros(self._shape, dtype=np.float32))
        self._rows.add(row)
        self._in_prompt[row] = False
        self._in_prompt[row, torch.from_numpy(prompt.astype(np.int64))] = True
        self._in_output[row] = torch.from_numpy(np.bincount(output, minlength=self._shape[1]).astype(np.float32))

    def remove_row(self, row: int) -> None:
        """Stop counting a row; rows that are not counted are skipped."""
        self._rows.discard(row)

    def add_tokens(self, rows: NDArray[np.int64], token_ids: torch.Tensor) -> None:
        """Count one generated token [N] for each of `rows` [N] that is counted."""
        if self._rows:
            counted = [index for index, row in enumerate(rows.tolist()) if row in self._rows]
            self._in_output[rows[counted], token_ids[counted]] += 1

    def add_run(self, row: int, token_ids: list[int]) -> None:
        """Count tokens that one row got at once, if it is counted."""
        if row in self._rows:
            self._in_output[row].index_add_(0, torch.tensor(token_ids), torch.ones(len(token_ids)))

    def select(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """For batch rows [N]: is the token in the prompt [N, V] bool, how often in the output [N, V] float."""
        return self._in_prompt[rows], self._in_output[rows]


def apply_penalties(
    logits: torch.Tensor, params: list[SamplingParams], in_prompt: torch.Tensor, in_output: torch.Tensor
) -> torch.Tensor:
    """Logits [N, V] with the penalties of `params` [N] applied; the tables are [N, V], as `TokenCounts.select` gives.

    Repetition (Keskar et al. 2019, https://arxiv.org/abs/1909.05858) divides positive logits of seen tokens and
    multiplies negative ones, over prompt and output; the other two are OpenAI's, over the output only.
    """
    repetition, frequency, presence = (
        torch.tensor(values).unsqueeze(-1)
        for values in (
            [p.repetition_penalty for p in params],
            [p.frequency_penalty for p in params],
            [p.presence_penalty for p in params],
        )
    )
    generated = in_output > 0
    factor = torch.where(in_prompt | generated, repetition, 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    return logits - frequency * in_output - presence * generated
