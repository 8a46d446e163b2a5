"""Keeps the text of users from becoming control tokens. Frontend process; used by `chat_template`.

Where a text spells a special token (`<|im_end|>`), a private character is put into the literal before the template is
rendered, and the rendered prompt is cut there: tokenized one by one, the pieces hold no literal.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from engined.errors import RequestError

PRIVATE_CHARACTERS = "".join(map(chr, (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))))
"""Unicode non-characters first: they have no use in text, so the first two are nearly always free."""


class SpecialLiterals:
    """The special tokens of one tokenizer, as they are written."""

    def __init__(self, special_tokens: Sequence[str]) -> None:
        literals = sorted((token for token in special_tokens if len(token) > 1), key=len, reverse=True)
        self._literal = re.compile("|".join(map(re.escape, literals))) if literals else None

    def cut(self, value: Any, mark: str) -> Any:
        """A copy of `value` with `mark` behind the first character of every literal, also of those that overlap.

        All texts in nested lists and dicts are cut, keys included.
        """
        match value:
            case str():
                return self._cut_text(value, mark)
            case dict():
                return {self.cut(key, mark): self.cut(item, mark) for key, item in value.items()}
            case list():
                return [self.cut(item, mark) for item in value]
            case _:
                return value

    def _cut_text(self, text: str, mark: str) -> str:
        if self._literal is None:
            return text
        while self._literal.search(text) is not None:
            text = self._literal.sub(lambda match: match[0][0] + mark + match[0][1:], text)
        return text


def free_characters(values: Sequence[Any], count: int) -> list[str]:
    """The first `count` private characters that no text in `values` has. Raises RequestError if there are too few."""
    used: set[str] = set()
    for text in _texts(values):
        used.update(text)
    free = [character for character in PRIVATE_CHARACTERS[: len(used) + count] if character not in used]
    if len(free) < count:
        raise RequestError("messages use up the private characters of Unicode", param="messages")
    return free[:count]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
