"""Follows one sequence through its grammar. Engine core; owned by the scheduler's request, touched by the busy loop."""

from abc import ABC, abstractmethod

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from engined.errors import GrammarError

_MAX_REASON_LENGTH = 300


def mask_bytes(vocab_size: int) -> int:
    """Bytes of one mask row: one bit a token, in whole words of 32."""
    return 4 * -(-vocab_size // 32)


def first_reason(error: str) -> str:
    """What matters of an error text of the library: what the regex parser says, or else its first line."""
    lines = error.splitlines() or ["unknown error"]
    reason = next((line for line in lines if line.startswith("error: ")), lines[0])
    return reason.removeprefix("error: ")[:_MAX_REASON_LENGTH].strip()


class GrammarMatcher(ABC):
    """The state of one sequence in its grammar. Once a method raised GrammarError, it is of no use any more."""

    num_mask_bytes: int
    """Size of a mask row."""
    constrains_end: bool = True
    """Whether EOS must end the sequence where it may end, even with `ignore_eos`, so that it ends whole."""

    @abstractmethod
    def accept_token(self, token_id: int) -> None:
        """Go on by one token, which the mask allowed; EOS is none of them."""

    @abstractmethod
    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, whatever the model thinks; they are not accepted yet. Often empty."""

    @abstractmethod
    def is_accepting(self) -> bool:
        """Whether the sequence may end here."""

    @abstractmethod
    def is_finished(self) -> bool:
        """Whether the sequence is complete, and nothing can follow."""

    @abstractmethod
    def fill_mask(self, row: NDArray[np.uint8]) -> None:
        """Write which tokens may come next into row [num_mask_bytes], bit i % 8 of byte i // 8 for token i. EOS is
        among them exactly when the sequence may end here."""


class LlguidanceMatcher(GrammarMatcher):
    """A matcher of llguidance, which never raises: it falls into an error state, and stays there."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self.num_mask_bytes = mask_bytes(vocab_size)

    def accept_token(self, token_id: int) -> None:
        if not self._matcher.consume_token(token_id):
            raise GrammarError(f"token {token_id} is not what the grammar expects")

    def forced_tokens(self) -> list[int]:
        return self._matcher.compute_ff_tokens()

    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    def is_finished(self) -> bool:
        if not self._matcher.is_stopped():
            return False
        self._check()
        return True

    def fill_mask(self, row: NDArray[np.uint8]) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar became too hard to follow ({first_reason(self._matcher.get_error())})")
