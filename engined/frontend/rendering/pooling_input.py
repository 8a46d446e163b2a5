"""Texts and pairs of texts into what a pooling model reads. Frontend process; runs in the renderer's threads.

A text that is cut keeps the special tokens at its ends: they are part of what the model was trained on.
"""

from dataclasses import dataclass

from engined.errors import ContextLengthError, RequestError
from engined.tokenization.tokenizer import ModelTokenizer

TokenIds = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPrompt:
    """One sequence of a request: `content` is a text, token ids that are taken as they are, or a pair of texts."""

    content: str | TokenIds | tuple[str, str]
    param: str
    """Field to name when it is at fault, for example "input[3]"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingExtras:
    """What a request asks of all its prompts."""

    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    """Tokens to keep, special ones included; -1 is as many as the model holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingInput:
    """One sequence, ready to be sent."""

    token_ids: TokenIds
    token_type_ids: list[int] | None = None
    """Segment of each token, for a pair; None for a single text."""


class PoolingTokenizer:
    """Tokenizes the prompts of one request for a model that reads at most `max_model_len` tokens. Raises RequestError.

    A text that could not fit, whatever its tokens, is refused (or cut) by its size alone.
    """

    def __init__(self, tokenizer: ModelTokenizer, vocab_size: int, extras: PoolingExtras, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._add_special_tokens = extras.add_special_tokens
        self._max_model_len = max_model_len
        self._keep = self._limit(extras.truncate_prompt_tokens)

    def encode(self, prompt: PoolingPrompt) -> PoolingInput:
        """Tokenize and cut one prompt, and check that it is there and fits."""
        content, param = prompt.content, prompt.param
        if isinstance(content, str):
            encoded = PoolingInput(token_ids=self._encode_text(content, param))
        elif isinstance(content, tuple):
            encoded = self._encode_pair(*content, param)
        else:
            encoded = PoolingInput(token_ids=self._check_ids(content, param)[: self._keep])
        num_tokens = len(encoded.token_ids)
        if num_tokens == 0:
            raise RequestError(f"{param} has no tokens: send at least one", param=param)
        if num_tokens > self._max_model_len:
            raise ContextLengthError(
                f"{param} has {num_tokens} tokens, but the model reads at most {self._max_model_len}: shorten it, or "
                "set truncate_prompt_tokens to -1 to drop the rest",
                param,
            )
        return encoded

    def _limit(self, truncate: int | None) -> int | None:
        """Tokens to keep; None if nothing is cut, because more than what the model reads is refused anyway."""
        if truncate == -1:
            return self._max_model_len
        return None if truncate is None or truncate > self._max_model_len else truncate

    def _encode_text(self, text: str, param: str) -> TokenIds:
        token_ids = self._tokenizer.encode(self._bounded(text, param))
        special = self._tokenizer.special
        if self._keep is not None and self._add_special_tokens:
            token_ids = token_ids[: self._room(len(special.prefix) + len(special.suffix))]
        added = self._add_special_tokens
        return self._tokenizer.add_special_ids(token_ids, bos=added, eos=added)[: self._keep]

    def _encode_pair(self, first: str, second: str, param: str) -> PoolingInput:
        """Both texts in one sequence, joined as the model's tokenizer joins pairs; the longer one is cut first."""
        backend = self._tokenizer.backend
        texts = [self._bounded(first, param), self._bounded(second, param)]
        left, right = backend.encode_batch_fast(texts, add_special_tokens=False)
        if self._keep is not None:
            num_special = backend.num_special_tokens_to_add(True) if self._add_special_tokens else 0
            num_left, num_right = _fit(len(left.ids), len(right.ids), self._room(num_special))
            left.truncate(num_left)
            right.truncate(num_right)
        pair = backend.post_process(left, right, add_special_tokens=self._add_special_tokens)
        return PoolingInput(token_ids=pair.ids, token_type_ids=pair.type_ids)

    def _room(self, num_special: int) -> int:
        """Tokens of text that remain after truncation."""
        assert self._keep is not None
        if self._keep <= num_special:
            raise RequestError(
                f"truncate_prompt_tokens must be more than {num_special}, the special tokens of this model",
                param="truncate_prompt_tokens",
            )
        return self._keep - num_special

    def _bounded(self, text: str, param: str) -> str:
        max_bytes = (self._max_model_len if self._keep is None else self._keep) * self._tokenizer.max_token_bytes
        num_bytes = len(text.encode())
        if num_bytes <= max_bytes:
            return text
        if self._keep is None:
            raise ContextLengthError(
                f"{param} has {num_bytes} bytes, which is more than the {self._max_model_len} tokens that the model "
                "reads: shorten it, or set truncate_prompt_tokens to -1 to drop the rest",
                param,
            )
        # Far more than the kept tokens can cover; tokenizing the rest would be wasted.
        return text[:max_bytes]

    def _check_ids(self, token_ids: TokenIds, param: str) -> TokenIds:
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= self._vocab_size):
            raise RequestError(
                f"{param}: token ids must lie in the vocabulary, 0 to {self._vocab_size - 1}", param=param
            )
        return token_ids


def _fit(num_first: int, num_second: int, room: int) -> tuple[int, int]:
    """Most tokens of either text when both share `room`: the longer one is cut first, then both evenly."""
    shorter = min(num_first, num_second)
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = room - shorter
    return (longer, shorter) if num_first > num_second else (shorter, longer)
