"""Texts as tokens of one byte each: whether a grammar accepts one, and random ones that it accepts."""

import random

import numpy as np

from engined.grammar.compiler import CompiledGrammar
from engined.grammar.matcher import mask_bytes

EOS_TOKEN_ID = 256
VOCAB_SIZE = 257

# Drawn half of the time where they are allowed, so that strings, lists and objects come to an end.
_CLOSING = set(b'"]},:')


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the text, to its end, is one of the grammar's: each byte is in its mask, and so is EOS after the last."""
    matcher = grammar.new_matcher()
    row = np.zeros(mask_bytes(VOCAB_SIZE), dtype=np.uint8)
    for byte in text.encode():
        if matcher.is_finished():
            return False
        matcher.fill_mask(row)
        if not _is_allowed(row, byte):
            return False
        matcher.accept_token(byte)
    return matcher.is_accepting()


def random_text(grammar: CompiledGrammar, draw: random.Random, most: int = 300) -> bytes | None:
    """A text that the grammar lets end, drawn byte by byte; None if there is no end within `most` bytes."""
    matcher = grammar.new_matcher()
    row = np.zeros(mask_bytes(VOCAB_SIZE), dtype=np.uint8)
    text = bytearray()
    while len(text) < most:
        if matcher.is_finished():
            return bytes(text)
        matcher.fill_mask(row)
        allowed = np.flatnonzero(np.unpackbits(row, bitorder="little")[:VOCAB_SIZE]).tolist()
        closing = [token_id for token_id in allowed if token_id in _CLOSING]
        if EOS_TOKEN_ID in allowed and (len(allowed) == 1 or draw.random() < 0.3):
            return bytes(text)
        candidates = closing if closing and draw.random() < 0.5 else [item for item in allowed if item != EOS_TOKEN_ID]
        token_id = draw.choice(candidates)
        matcher.accept_token(token_id)
        text.append(token_id)
    return None


def _is_allowed(row: np.ndarray, token_id: int) -> bool:  # type: ignore[type-arg]
    return bool(row[token_id // 8] >> token_id % 8 & 1)
