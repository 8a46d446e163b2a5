"""Incremental detokenizing of one sequence. Frontend process; each `RequestState` owns one.

Text is released when it is certain: an incomplete UTF-8 character waits for its other tokens, and if they never come,
`flush` gives the replacement character that it really is.
"""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

MAX_HELD_TOKENS = 64
"""More tokens in a row without a complete character are garbage and released as such, which bounds the work."""
MAX_CONTEXT_TOKENS = 24
REPLACEMENT = "\ufffd"


class IncrementalDetokenizer:
    """Turns token ids into text deltas, whose concatenation is the text of the whole sequence.

    Invariant: `_last` are the tokens of the newest delta, `_held` those after it; the stream's own window is the two
    together, so whenever the stream gives up, the text that is missing can be computed from them. Kept tokens are in
    neither: the stream would skip them.
    """

    def __init__(
        self,
        backend: Tokenizer,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        kept_tokens: Iterable[str] = (),
    ) -> None:
        """The end of the prompt is context: some decoders drop the space of the first word of a text.

        `kept_tokens` are special tokens whose literals stay in the text although the others are skipped.
        """
        self._backend = backend
        self._skip_special_tokens = skip_special_tokens
        self._kept = _ids_of(kept_tokens, backend) if skip_special_tokens else {}
        self._context = self._last = self._context_of(prompt_token_ids)
        self._held: list[int] = []
        self._stream = self._new_stream()

    def decode(self, token_id: int) -> str:
        """Take one token; the text that became certain, often a word, sometimes nothing."""
        if token_id in self._kept:
            return self.flush() + self._kept[token_id]
        self._held.append(token_id)
        try:
            delta = self._stream.step(self._backend, token_id)
        except Exception:  # tokenizers raises bare Exception when a decoder rewrites earlier text
            return self._release()
        if delta is None:
            return self._release() if len(self._held) >= MAX_HELD_TOKENS else ""
        self._last, self._held = self._held, []
        return delta

    def flush(self) -> str:
        """The text still held, at the end of the sequence."""
        return self._release() if self._held else ""

    def _release(self) -> str:
        """Decode the held tokens now, the slow way, and start again after them."""
        before = self._decode(self._last)
        text = self._decode(self._last + self._held)
        delta = text[len(before) :] if text.startswith(before) else self._decode(self._held)
        self._last, self._held = self._held, []
        self._stream = self._new_stream()
        return delta

    def _new_stream(self) -> DecodeStream:
        text = self._decode(self._last)
        if not text or text.endswith(REPLACEMENT):
            # Without text there is no context; with half a character the stream would wait for the rest, and then
            # repeat its context.
            self._last = self._context
        return DecodeStream(ids=self._last, skip_special_tokens=self._skip_special_tokens)

    def _context_of(self, prompt_token_ids: Sequence[int]) -> list[int]:
        for length in range(4, MAX_CONTEXT_TOKENS):
            context = list(prompt_token_ids[-length:])
            if REPLACEMENT not in self._decode(context):
                return context
            if length >= len(prompt_token_ids):
                break
        return []

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=self._skip_special_tokens)


def _ids_of(literals: Iterable[str], backend: Tokenizer) -> dict[int, str]:
    """Those of the literals that are tokens, by id."""
    ids = ((backend.token_to_id(literal), literal) for literal in literals)
    return {token_id: literal for token_id, literal in ids if token_id is not None}
