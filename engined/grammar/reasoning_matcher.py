"""Follows one sequence through its reasoning, and from there through its grammar. Engine core; see `GrammarMatcher`."""

from collections.abc import Sequence
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from engined.errors import GrammarError
from engined.grammar.matcher import GrammarMatcher, mask_bytes
from engined.grammar.reasoning_markers import ReasoningMarkers, ReasoningTokenizer
from engined.protocol.reasoning import ReasoningSpec


class _Phase(Enum):
    BEGINNING = auto()
    """The next token tells whether there is reasoning."""
    REASONING = auto()
    ANSWER = auto()


class ReasoningMatcher(GrammarMatcher):
    """Lets the model reason freely, ends that after `max_tokens`, and holds the rest to `inner`, if there is one."""

    def __init__(
        self,
        spec: ReasoningSpec,
        tokenizer: ReasoningTokenizer,
        inner: GrammarMatcher | None,
        eos_token_ids: Sequence[int],
    ) -> None:
        self.num_mask_bytes = mask_bytes(tokenizer.vocab_size)
        self.constrains_end = inner is not None
        self._markers: ReasoningMarkers = tokenizer.markers(spec)
        self._token_bytes = tokenizer.token_bytes
        self._inner = inner
        self._eos_token_ids = eos_token_ids
        self._tokens_left = spec.max_tokens
        self._num_matched = 0
        self._phase = _Phase.REASONING
        self._pending: list[int] = []
        """Tokens that must come next, before the phase begins."""
        self._start(spec)

    def accept_token(self, token_id: int) -> None:
        if self._pending:
            self._accept_pending(token_id)
            return
        if self._phase is _Phase.BEGINNING:
            if token_id == self._markers.begin_ids[0]:
                self._phase = _Phase.REASONING
                self._pending = list(self._markers.begin_ids[1:])
                return
            if self._inner is None and not self._token_bytes(token_id).strip():
                return
            self._phase = _Phase.ANSWER
        if self._phase is _Phase.REASONING:
            self._reason(token_id)
        elif self._inner is not None:
            self._inner.accept_token(token_id)

    def forced_tokens(self) -> list[int]:
        if self._pending:
            return list(self._pending)
        if self._phase is _Phase.ANSWER and self._inner is not None:
            return self._inner.forced_tokens()
        return []

    def is_accepting(self) -> bool:
        if self._inner is None:
            return True
        return not self._pending and self._phase is not _Phase.REASONING and self._inner.is_accepting()

    def is_finished(self) -> bool:
        if self._inner is None or self._pending or self._phase is not _Phase.ANSWER:
            return False
        return self._inner.is_finished()

    def fill_mask(self, row: NDArray[np.uint8]) -> None:
        if self._pending:
            row[:] = 0
            _allow(row, self._pending[0])
        elif self._phase is _Phase.REASONING:
            self._fill_free(row)
        else:
            if self._inner is None:
                row[:] = 0xFF
            else:
                self._inner.fill_mask(row)
            if self._phase is _Phase.BEGINNING:
                _allow(row, self._markers.begin_ids[0])

    def _start(self, spec: ReasoningSpec) -> None:
        markers = self._markers
        match spec.start:
            case "optional" if spec.max_tokens == 0:
                self._phase = _Phase.ANSWER
            case "optional":
                self._phase = _Phase.BEGINNING
            case "required":
                self._pending = list(markers.begin_ids)
        if spec.max_tokens == 0 and self._phase is _Phase.REASONING:
            self._close([*self._pending, *markers.end_ids, *markers.separator_ids])

    def _reason(self, token_id: int) -> None:
        if self._is_end(token_id):
            self._close(list(self._markers.separator_ids))
            return
        if self._tokens_left is not None:
            self._tokens_left -= 1
            if self._tokens_left <= 0:
                self._close([*self._markers.end_ids, *self._markers.separator_ids])

    def _is_end(self, token_id: int) -> bool:
        markers = self._markers
        if not markers.end:
            return token_id == markers.end_ids[0]
        self._num_matched = markers.matched_after(self._num_matched, self._token_bytes(token_id))
        return self._num_matched == len(markers.end)

    def _close(self, pending: list[int]) -> None:
        self._phase = _Phase.ANSWER
        self._pending = pending

    def _accept_pending(self, token_id: int) -> None:
        if token_id != self._pending[0]:
            raise GrammarError(f"token {token_id} came where {self._pending[0]} must stand")
        self._pending.pop(0)

    def _fill_free(self, row: NDArray[np.uint8]) -> None:
        """Any token, but none that writes past the end of the reasoning. Before a grammar, EOS is none of them."""
        row[:] = 0xFF
        if self._inner is not None:
            for token_id in self._eos_token_ids:
                _forbid(row, token_id)
        if self._markers.end:
            for token_id in self._markers.overlong[self._num_matched]:
                _forbid(row, token_id)
            if self._num_matched:
                for token_id in self._markers.overlong[0]:
                    _forbid(row, token_id)


def _allow(row: NDArray[np.uint8], token_id: int) -> None:
    row[token_id // 8] |= 1 << token_id % 8


def _forbid(row: NDArray[np.uint8], token_id: int) -> None:
    row[token_id // 8] &= ~(1 << token_id % 8) & 0xFF
