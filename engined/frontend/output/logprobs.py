"""Log-probabilities in the shapes of the two APIs. Frontend process; called by `serving` when a chunk is built.

A wire entry (`TokenLogprobs`) holds the token that stands there first and then the alternatives; here it becomes a list
of pairs, best first, that names each token once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engined.protocol.engine import TokenLogprobs
from engined.tokenization.tokenizer import ModelTokenizer

LogprobPair = tuple[int, float]


def ranked_pairs(entry: TokenLogprobs) -> list[LogprobPair]:
    """All tokens of an entry with their log-probabilities, the most probable first."""
    pairs = dict(zip(entry.token_ids, entry.logprobs, strict=True))
    return sorted(pairs.items(), key=lambda pair: -pair[1])


def top_pairs(entry: TokenLogprobs, num_top: int) -> list[LogprobPair]:
    """The `num_top` best tokens, and the one that stands there if it is not among them."""
    pairs = ranked_pairs(entry)
    actual = entry.token_ids[0]
    return pairs[:num_top] + [pair for pair in pairs[num_top:] if pair[0] == actual]


@dataclass(frozen=True, slots=True)
class LogprobFormatter:
    """Names tokens for one request: by their text, or as "token_id:<n>" with `return_tokens_as_token_ids`."""

    tokenizer: ModelTokenizer
    num_top: int
    tokens_as_ids: bool = False

    def token_name(self, token_id: int) -> str:
        """What stands for a token in the response."""
        if self.tokens_as_ids:
            return f"token_id:{token_id}"
        return self.tokenizer.token_text(token_id)

    def chat_content(self, entries: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
        """`logprobs.content` of a chat choice: one element a token, with its alternatives if any were asked for."""
        return [
            self._chat_token(entry.token_ids[0], entry.logprobs[0])
            | {"top_logprobs": [self._chat_token(*pair) for pair in self._chat_top(entry)]}
            for entry in entries
        ]

    def completion(
        self, entries: Sequence[TokenLogprobs | None], text_offsets: list[int], token_ids: list[int]
    ) -> dict[str, Any]:
        """`logprobs` of a completion choice: parallel arrays. An entry is None for the first token of a prompt."""
        return {
            "tokens": [self.token_name(token_id) for token_id in token_ids],
            "token_logprobs": [None if entry is None else entry.logprobs[0] for entry in entries],
            "top_logprobs": [None if entry is None else self._completion_top(entry) for entry in entries],
            "text_offset": text_offsets,
        }

    def prompt(self, entries: Sequence[TokenLogprobs]) -> list[dict[str, Any] | None]:
        """`prompt_logprobs`: one object a prompt token, keyed by token id; null for the first."""
        return [None, *(self._prompt_token(entry) for entry in entries)]

    def _chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self.token_name(token_id),
            "logprob": logprob,
            "bytes": list(self.tokenizer.token_bytes(token_id)),
        }

    def _chat_top(self, entry: TokenLogprobs) -> list[LogprobPair]:
        return top_pairs(entry, self.num_top) if self.num_top else []

    def _completion_top(self, entry: TokenLogprobs) -> dict[str, float]:
        """Keyed by text: of tokens that read alike the best stays, but the one that stands there comes before all."""
        top: dict[str, float] = {}
        for token_id, logprob in top_pairs(entry, self.num_top):
            top.setdefault(self.token_name(token_id), logprob)
        return top | {self.token_name(entry.token_ids[0]): entry.logprobs[0]}

    def _prompt_token(self, entry: TokenLogprobs) -> dict[str, Any]:
        pairs = ranked_pairs(entry)
        ranks = {token_id: rank for rank, (token_id, _) in enumerate(pairs, start=1)}
        # Only the rank of the actual token is not its place in the list: it may be anywhere in the vocabulary.
        ranks[entry.token_ids[0]] = entry.rank
        return {
            str(token_id): {
                "logprob": logprob,
                "rank": ranks[token_id],
                "decoded_token": self.tokenizer.token_text(token_id),
            }
            for token_id, logprob in pairs
        }
