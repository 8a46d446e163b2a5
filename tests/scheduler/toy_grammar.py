"""A grammar over the toy vocabulary: what may follow depends on all that was generated. For fakes and references."""

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from engined.errors import GrammarError
from engined.grammar.matcher import GrammarMatcher
from engined.protocol.grammar import GrammarSpec

VOCAB_SIZE = 12
FIRST_WORD = 3
"""Tokens below may be stop tokens; tokens from here on never are."""
TOY = GrammarSpec(kind="regex", value="toy")
FAULTY = GrammarSpec(kind="regex", value="faulty")
"""The same, but it breaks down after three tokens."""


def _digest(output: list[int]) -> int:
    return crc32(bytes(output), 7)


def allowed_tokens(output: list[int]) -> set[int]:
    """Ordinary tokens that may follow; often only one."""
    digest = _digest(output)
    if digest % 3 == 0:
        return {FIRST_WORD + digest // 3 % (VOCAB_SIZE - FIRST_WORD)}
    return {token_id for token_id in range(2, VOCAB_SIZE) if (token_id + digest) % 3}


def is_accepting(output: list[int]) -> bool:
    """Whether the output may end here."""
    return is_finished(output) or _digest(output) % 3 == 1


def is_finished(output: list[int]) -> bool:
    """Whether nothing may follow."""
    return len(output) > 1 and _digest(output) % 11 == 5


class ToyMatcher(GrammarMatcher):
    """Follows one output."""

    num_mask_bytes = 4

    def __init__(self, *, is_faulty: bool, eos_token_ids: tuple[int, ...]) -> None:
        self.output: list[int] = []
        self._is_faulty = is_faulty
        self._eos_token_ids = eos_token_ids

    def accept_token(self, token_id: int) -> None:
        if token_id not in allowed_tokens(self.output) or (self._is_faulty and len(self.output) == 3):
            raise GrammarError(f"token {token_id} after {self.output}")
        self.output.append(token_id)

    def forced_tokens(self) -> list[int]:
        output = self.output.copy()
        while not is_finished(output) and len(allowed := allowed_tokens(output)) == 1:
            output += allowed
        return output[len(self.output) :]

    def is_accepting(self) -> bool:
        return is_accepting(self.output)

    def is_finished(self) -> bool:
        return is_finished(self.output)

    def fill_mask(self, row: NDArray[np.uint8]) -> None:
        eos = self._eos_token_ids if self.is_accepting() else ()
        bits = sum(1 << token_id for token_id in allowed_tokens(self.output) | {*eos})
        row[:] = list(bits.to_bytes(4, "little"))
