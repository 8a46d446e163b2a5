"""The library's view of a tokenizer. Made once by the compiler, in the frontend's child and in the core.

Special tokens have no text there: only a rule that names one lets it through. The library takes every added token for
special. But those that are not, such as Qwen's <tool_call> or the runs of spaces of Gemma, are text that the model
writes in one token; it must find them wherever a grammar lets their text through.
"""

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from engined.tokenization.tokenizer import ModelTokenizer, SpecialIds


def load_vocabulary(backend: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The tokens of `backend`; `vocab_size` is that of the model's logits."""
    added = backend.get_added_tokens_decoder()
    if all(token.special for token in added.values()):
        return LLTokenizer(backend.to_str(), n_vocab=vocab_size, eos_token=list(eos_token_ids))
    return LLTokenizer(TokenizerWrapper(_Vocabulary(backend, vocab_size, eos_token_ids)), eos_token=list(eos_token_ids))


class _Vocabulary:
    """What the library reads of a tokenizer that is a Python object."""

    bos_token_id = None

    def __init__(self, backend: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        tokenizer = ModelTokenizer(backend, SpecialIds(named={}))
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        added = backend.get_added_tokens_decoder()
        # What ends a sequence is never text, whatever the file says of it.
        self.special_token_ids = [*eos_token_ids, *(token_id for token_id, token in added.items() if token.special)]
        self.eos_token_id = eos_token_ids[0]
        self._backend = _without_prepended_space(backend)

    def __call__(self, text: str) -> list[int]:
        """The ids of a text that the grammar forces."""
        token_ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return token_ids


def _without_prepended_space(backend: Tokenizer) -> Tokenizer:
    """A tokenizer that takes each text for the middle of a longer one, as forced text is."""
    data = json.loads(backend.to_str())
    data["normalizer"] = _without_prepending(data["normalizer"], "normalizers")
    data["pre_tokenizer"] = _without_prepending(data["pre_tokenizer"], "pretokenizers")
    return Tokenizer.from_str(json.dumps(data))


def _without_prepending(step: Any, list_key: str) -> Any:
    """A step of a tokenizer, or a sequence of steps, that adds no space."""
    if step is None or step["type"] == "Prepend":
        return None
    if step["type"] == "Sequence":
        steps = (_without_prepending(inner, list_key) for inner in step[list_key])
        return step | {list_key: [inner for inner in steps if inner is not None]}
    never = {"prepend_scheme": "never", "add_prefix_space": False}
    return {key: never.get(key, value) for key, value in step.items()}
