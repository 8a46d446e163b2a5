"""The tags around a block of reasoning, as tokens of one model. Engine core; made once for each format.

Where a tag is one token of the vocabulary, that token is it. Where it is not, it is found in the bytes of the tokens,
and tokens that would write past its end are not allowed there, so that what follows always begins with a token.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from engined.protocol.reasoning import ReasoningSpec
from engined.tokenization.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarkers:
    """What a matcher must know of begin, end and separator."""

    begin_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    """How the end is written when it is enforced."""
    separator_ids: tuple[int, ...]
    end: bytes
    """Empty if the end is one token: then it counts only as that."""
    overlong: tuple[tuple[int, ...], ...]
    """`overlong[k]`: the tokens that would write past the end where k bytes of it stand already; [0] are those that
    hold the whole of it and more."""

    def matched_after(self, num_matched: int, token: bytes) -> int:
        """How many bytes of the end stand at the end of the text after one more token; all of them: it is written."""
        text = self.end[:num_matched] + token
        for length in range(min(len(self.end), len(text)), 0, -1):
            if text.endswith(self.end[:length]):
                return length
        return 0


class ReasoningTokenizer:
    """Makes the markers of a format, and knows the bytes of tokens. Thread-safe; the tokenizer is read at first use."""

    def __init__(self, load: Callable[[], ModelTokenizer], vocab_size: int) -> None:
        """`vocab_size` is that of the logits."""
        self._load = load
        self.vocab_size = vocab_size
        self._lock = threading.Lock()
        self._tokenizer: ModelTokenizer | None = None
        self._markers: dict[tuple[str, str, str], ReasoningMarkers] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text."""
        return self._get().token_bytes(token_id)

    def markers(self, spec: ReasoningSpec) -> ReasoningMarkers:
        """The markers of a format; slow once, where its end is no token."""
        key = (spec.begin, spec.end, spec.separator)
        with self._lock:
            if key not in self._markers:
                self._markers[key] = self._make(spec)
            return self._markers[key]

    def _get(self) -> ModelTokenizer:
        if self._tokenizer is None:
            self._tokenizer = self._load()
        return self._tokenizer

    def _make(self, spec: ReasoningSpec) -> ReasoningMarkers:
        end_ids = self._encode(spec.end)
        end = b"" if len(end_ids) == 1 else spec.end.encode()
        return ReasoningMarkers(
            begin_ids=self._encode(spec.begin),
            end_ids=end_ids,
            separator_ids=self._encode(spec.separator),
            end=end,
            overlong=self._find_overlong(end) if end else (),
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        tokenizer = self._get()
        token_id = tokenizer.backend.token_to_id(text) if text else None
        return (token_id,) if token_id is not None else tuple(tokenizer.encode(text))

    def _find_overlong(self, end: bytes) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in end]
        tokenizer = self._get()
        for token_id in range(min(self.vocab_size, tokenizer.vocab_size)):
            token = tokenizer.token_bytes(token_id)
            for num_matched in range(len(end)):
                rest = end[num_matched:]
                if len(token) > len(rest) and token.startswith(rest):
                    found[num_matched].append(token_id)
            if end in token and not token.endswith(end) and not token.startswith(end):
                found[0].append(token_id)
        return tuple(map(tuple, found))
