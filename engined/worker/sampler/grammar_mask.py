"""Holds rows of logits to what their grammars allow. Runs on rank 0, before everything else in the sampler."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engined.ipc.frame import Buffer

_FORBIDDEN = float("-inf")
# [256, 8] what the tokens of a mask byte get: 0 where its bit is set, else minus infinity.
_PENALTIES = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=-1, bitorder="little"),
    np.float32(0.0),
    np.float32(_FORBIDDEN),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedTokens:
    """G of the S rows of a step have a grammar."""

    rows: list[int]
    """[G] which of the S rows."""
    bits: NDArray[np.uint8]
    """[G, B] bit i % 8 of byte i // 8 allows token i."""


def unpack_masks(rows: list[int], buffer: Buffer) -> AllowedTokens:
    """Give masks that came as one buffer, row after row, to the rows [G] of a step."""
    return AllowedTokens(rows=rows, bits=np.frombuffer(buffer, dtype=np.uint8).reshape(len(rows), -1))


def apply_grammar_masks(logits: torch.Tensor, allowed: AllowedTokens) -> None:
    """Put minus infinity wherever the grammar of a row forbids the token, in place on logits [S, V].

    Masks may be longer than the vocabulary; what they do not reach is forbidden.
    """
    # Adding takes 0.4 ms for 8 rows of 49,152 tokens on one core, filling by a mask of booleans 2.8 ms.
    penalties = torch.from_numpy(np.take(_PENALTIES, allowed.bits, axis=0).reshape(len(allowed.rows), -1))
    num_reached = min(logits.shape[-1], penalties.shape[-1])
    for row, penalty in zip(allowed.rows, penalties, strict=True):
        logits[row, :num_reached] += penalty[:num_reached]
        logits[row, num_reached:] = _FORBIDDEN
