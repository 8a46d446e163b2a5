"""The tokenizer of the model, from a Hugging Face folder or from a GGUF file. Frontend and core; no torch.

Special tokens at the ends are decided here, once, so that a prompt has exactly one BOS whatever its template writes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from engined.checkpoint.gguf import GgufFile
from engined.checkpoint.model_info import ModelInfo
from engined.errors import CheckpointError, ModelNotFoundError
from engined.tokenization import byte_level
from engined.tokenization.gguf_tokenizer import gguf_special_ids, tokenizer_from_gguf

ANY_LENGTH = 1 << 30
"""Bytes of a token where unknown words become one token, and runs of white space none, as in WordPiece."""
NORMALIZER_SHRINKAGE = 3
"""A Unicode normaliser may turn up to so many bytes into one (Hangul letters into a syllable)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids that are put before and after a raw prompt, and the special tokens that templates may name."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    named: dict[str, str]
    """For example {"bos_token": "<s>"}."""


class ModelTokenizer:
    """Text to ids and back. Thread-safe; the expensive calls release the GIL."""

    def __init__(self, backend: Tokenizer, special: SpecialIds) -> None:
        self.backend = backend
        self.special = special
        self.special_token_ids = {
            token.content: token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        }
        self.special_tokens = tuple(self.special_token_ids)
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self._is_byte_level = _has_decoder(backend, "ByteLevel")
        self._added_ids = frozenset(backend.get_added_tokens_decoder())
        self.max_token_bytes = self._longest_token()
        self.token_bytes = lru_cache(maxsize=1 << 16)(self._token_bytes)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, nothing added. Literals of special tokens in it become those tokens."""
        token_ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return token_ids

    def add_special_ids(self, token_ids: list[int], *, bos: bool, eos: bool) -> list[int]:
        """Put around `token_ids` what the model's tokenizer puts there, unless it is there already."""
        prefix = list(self.special.prefix) if bos else []
        suffix = list(self.special.suffix) if eos else []
        if prefix and token_ids[: len(prefix)] != prefix:
            token_ids = prefix + token_ids
        if suffix and token_ids[-len(suffix) :] != suffix:
            token_ids = token_ids + suffix
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of `token_ids`."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself; parts of a character show as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def _token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that one token adds to a text."""
        token = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._added_ids:
            return token.encode()
        if self._is_byte_level:
            return byte_level.to_bytes(token) or token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    def _longest_token(self) -> int:
        """No token stands for more bytes of a prompt than this."""
        if not (self._is_byte_level or getattr(self.backend.model, "byte_fallback", False)):
            return ANY_LENGTH
        tokens = self.backend.get_vocab(with_added_tokens=True)
        longest = max(len(token) if self._is_byte_level else len(token.encode()) for token in tokens)
        return longest if self.backend.normalizer is None else longest * NORMALIZER_SHRINKAGE


def load_tokenizer(model_info: ModelInfo) -> ModelTokenizer:
    """Read the tokenizer that belongs to the model.

    Raises ModelNotFoundError, CheckpointError or UnsupportedModelError, naming the file.
    """
    if model_info.checkpoint_format == "gguf":
        file = GgufFile.open(model_info.path)
        prefix, suffix, named = gguf_special_ids(file)
        special = SpecialIds(prefix=prefix, suffix=suffix, named=named)
        return ModelTokenizer(tokenizer_from_gguf(file), special)
    return _load_folder(Path(model_info.path))


def _load_folder(folder: Path) -> ModelTokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelNotFoundError(f"{path}: no such file; engined needs the fast tokenizer of the model")
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for a malformed file
        raise CheckpointError(f"{path}: not a tokenizer: {error}") from error
    # Some files carry the batch settings of their author: a text would be cut or filled up without a word.
    backend.no_truncation()
    backend.no_padding()
    config = read_json_file(folder / "tokenizer_config.json")
    named = {name: token for name in _NAMED_TOKENS if (token := _token_content(config.get(name)))}
    prefix, suffix = _probe_special_ids(backend)
    for side, flag, name in (("prefix", "add_bos_token", "bos_token"), ("suffix", "add_eos_token", "eos_token")):
        token_id = backend.token_to_id(named[name]) if name in named else None
        if token_id is None or not isinstance(config.get(flag), bool):
            continue
        ids = (token_id,) if config[flag] else ()
        prefix, suffix = (ids, suffix) if side == "prefix" else (prefix, ids)
    return ModelTokenizer(backend, SpecialIds(prefix=prefix, suffix=suffix, named=named))


_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_json_file(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model; empty if there is no such file. Raises CheckpointError."""
    if not path.is_file():
        return {}
    try:
        data = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return data


def _token_content(token: Any) -> str | None:
    """tokenizer_config.json writes a token as a string, or as an object with its properties."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _probe_special_ids(backend: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text."""
    with_special = backend.encode("a", add_special_tokens=True)
    mask = with_special.special_tokens_mask
    num_before = next((index for index, is_special in enumerate(mask) if not is_special), len(mask))
    num_after = next((index for index, is_special in enumerate(reversed(mask)) if not is_special), 0)
    ids = with_special.ids
    return tuple(ids[:num_before]), tuple(ids[len(ids) - num_after :])


def _has_decoder(backend: Tokenizer, kind: str) -> bool:
    if backend.decoder is None:
        return False
    state = json.loads(backend.decoder.__getstate__())
    return any(decoder.get("type") == kind for decoder in [state, *state.get("decoders", [])])
