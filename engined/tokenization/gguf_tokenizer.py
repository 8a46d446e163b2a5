"""A `tokenizers.Tokenizer` from the metadata of a GGUF file. Called once, by `tokenizer`.

Two kinds: "gpt2" is byte-level BPE, whose split pattern depends on `tokenizer.ggml.pre`; "llama" is SentencePiece BPE
with byte fallback, which comes without merges: they follow from the scores.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engined.checkpoint.gguf import GgufFile
from engined.errors import CheckpointError, EnginedError, UnsupportedModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""`tokenizer.ggml.token_type`."""

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_QWEN2 = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
SPLIT_PATTERNS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _TEKKEN,
}
GPT2_SPLIT = ("gpt-2", "gpt2", "default")
DIGITS_THEN_GPT2_SPLIT = ("smollm", "starcoder", "refact", "command-r")
ADDS_BOS_BY_DEFAULT = ("llama-bpe", "llama3", "llama-v3", "tekken")
WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""Vocabularies made by tiktoken: a word that is in the vocabulary is one token, whatever its merges would give."""


def tokenizer_from_gguf(file: GgufFile) -> Tokenizer:
    """Build the tokenizer. Raises UnsupportedModelError for an unknown kind, CheckpointError for a damaged one."""
    kind = file.metadata.get("tokenizer.ggml.model")
    builder = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}.get(str(kind))
    if builder is None:
        raise UnsupportedModelError(
            f"{file.path}: tokenizer.ggml.model is {kind!r}; engined knows gpt2 (byte-level BPE) "
            "and llama (SentencePiece)"
        )
    tokens = list(_array(file, "tokens"))
    try:
        tokenizer = builder(file, tokens)
        _add_special_tokens(tokenizer, file, tokens)
    except EnginedError:
        raise
    except Exception as error:  # tokenizers raises bare Exception, for example for a merge outside the vocabulary
        raise CheckpointError(f"{file.path}: its tokenizer is damaged: {error}") from error
    return tokenizer


def gguf_special_ids(file: GgufFile) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, str]]:
    """Ids put before a raw prompt, ids put after it, and the named special tokens for the chat template."""
    metadata = file.metadata
    tokens = _array(file, "tokens")
    ids: dict[str, int] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            ids[name] = token_id
    is_sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    default_bos = is_sentencepiece or metadata.get("tokenizer.ggml.pre") in ADDS_BOS_BY_DEFAULT
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    if metadata.get("tokenizer.ggml.add_bos_token", default_bos) and "bos" in ids:
        prefix = (ids["bos"],)
    if metadata.get("tokenizer.ggml.add_eos_token", False) and "eos" in ids:
        suffix = (ids["eos"],)
    return prefix, suffix, {f"{name}_token": tokens[token_id] for name, token_id in ids.items()}


def _byte_level_bpe(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    merges = [_split_merge(file, merge) for merge in _array(file, "merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre in WHOLE_WORDS_FIRST))
    if pre in GPT2_SPLIT:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    elif pre in DIGITS_THEN_GPT2_SPLIT:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif pre in SPLIT_PATTERNS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT_PATTERNS[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        known = ", ".join(sorted((*GPT2_SPLIT, *DIGITS_THEN_GPT2_SPLIT, *SPLIT_PATTERNS)))
        raise UnsupportedModelError(
            f"{file.path}: tokenizer.ggml.pre is {pre!r}; engined knows {known}. Use the model's Hugging Face folder"
        )
    if pre in ("qwen2", "deepseek-r1-qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(file: GgufFile, tokens: list[str]) -> Tokenizer:
    metadata = file.metadata
    scores: Sequence[float] = _array(file, "scores")
    if len(scores) != len(tokens):
        raise CheckpointError(f"{file.path}: tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens")
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown_id = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab,
            merges_from_scores(vocab, scores),
            unk_token=tokens[unknown_id] if 0 <= unknown_id < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    adds_space = metadata.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="\u2581", prepend_scheme="first" if adds_space else "never", split=False
    )
    steps: list[decoders.Decoder] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def merges_from_scores(vocab: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that a SentencePiece BPE vocabulary implies: every way to cut a piece into two others, by its score.

    SentencePiece always joins the neighbours whose union scores best; a merge list in this order does the same.
    """
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, index in vocab.items():
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                merges.append((-scores[index], left, right, piece[:cut], piece[cut:]))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _add_special_tokens(tokenizer: Tokenizer, file: GgufFile, tokens: list[str]) -> None:
    """Control tokens are special; user-defined ones are ordinary text that is never cut into pieces."""
    types = _array(file, "token_type") if "tokenizer.ggml.token_type" in file.metadata else []
    control = [
        AddedToken(token, normalized=False, special=True)
        for token, token_type in zip(tokens, types, strict=False)
        if token_type == CONTROL
    ]
    user_defined = [
        AddedToken(token, normalized=False, special=False)
        for token, token_type in zip(tokens, types, strict=False)
        if token_type == USER_DEFINED
    ]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(user_defined)


def _array(file: GgufFile, name: str) -> Sequence[Any]:
    values = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise CheckpointError(f"{file.path}: tokenizer.ggml.{name} is missing")
    return values


def _split_merge(file: GgufFile, merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not separator:
        raise CheckpointError(f"{file.path}: tokenizer.ggml.merges has the malformed entry {merge!r}")
    return left, right
