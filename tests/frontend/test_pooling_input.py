"""What a pooling model reads: equal to transformers' tokenizer for texts and pairs, cut or whole."""

import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engined.checkpoint.load import load_model_info
from engined.errors import ContextLengthError, RequestError
from engined.frontend.rendering.pooling_input import PoolingExtras, PoolingPrompt, PoolingTokenizer
from engined.frontend.serving.pooling.embeddings import parse_input, to_base64
from engined.tokenization.tokenizer import ModelTokenizer, load_tokenizer

MAX_MODEL_LEN = 32
WORDS = ["the", "quick", "föx", "über", "jumps", "supercalifragilistic", "123,456", "你好", "!?", "e-mail", "naïve"]


@pytest.fixture(scope="module")
def wordpiece(minilm: Path) -> ModelTokenizer:
    return load_tokenizer(load_model_info(minilm))


def make(tokenizer: ModelTokenizer, limit: int | None = None, *, special: bool = True) -> PoolingTokenizer:
    extras = PoolingExtras(truncate_prompt_tokens=limit, add_special_tokens=special)
    return PoolingTokenizer(tokenizer, tokenizer.vocab_size, extras, MAX_MODEL_LEN)


def prompt(content: "str | list[int] | tuple[str, str]") -> PoolingPrompt:
    return PoolingPrompt(content=content, param="input")


@pytest.mark.parametrize("limit", [-1, 5, 6, 17, 32])
def test_cut_texts_and_pairs_equal_transformers(wordpiece: ModelTokenizer, minilm: Path, limit: int) -> None:
    reference = AutoTokenizer.from_pretrained(minilm)
    tokenizer, without_special = make(wordpiece, limit), make(wordpiece, limit, special=False)
    options = {"truncation": True, "max_length": MAX_MODEL_LEN if limit == -1 else limit}
    rng = random.Random(limit)
    for _ in range(100):
        first, second = (" ".join(rng.choices(WORDS, k=rng.randint(1, 20))) for _ in range(2))
        assert tokenizer.encode(prompt(first)).token_ids == reference(first, **options).input_ids
        bare = without_special.encode(prompt(first))
        assert bare.token_ids == reference(first, add_special_tokens=False, **options).input_ids
        pair, expected = tokenizer.encode(prompt((first, second))), reference(first, second, **options)
        assert (pair.token_ids, pair.token_type_ids) == (expected.input_ids, expected.token_type_ids)


def test_tokenizer_file_neither_cuts_nor_fills_up(wordpiece: ModelTokenizer) -> None:
    """The file of this model asks for both: 128 tokens, always."""
    assert len(wordpiece.encode("word " * 200)) == 200
    assert len(wordpiece.encode("word")) == 1


def test_bytes_that_are_no_tokens_do_not_count(wordpiece: ModelTokenizer, minilm: Path) -> None:
    text = " " * 50_000 + "a" * 50_000 + " a"
    expected = AutoTokenizer.from_pretrained(minilm)(text).input_ids
    assert len(expected) == 4
    for limit in (None, -1):
        assert make(wordpiece, limit).encode(prompt(text)).token_ids == expected


def test_token_ids_are_taken_as_they_are(wordpiece: ModelTokenizer) -> None:
    assert make(wordpiece).encode(prompt([7, 8, 9])).token_ids == [7, 8, 9]
    assert make(wordpiece, 2).encode(prompt([7, 8, 9])).token_ids == [7, 8]


@pytest.mark.parametrize("limit", [None, MAX_MODEL_LEN + 1])
@pytest.mark.parametrize("content", ["word " * 31, "word " * 100_000, ("word " * 15, "word " * 15), [7] * 33])
def test_what_does_not_fit_is_refused(
    wordpiece: ModelTokenizer, content: "str | list[int] | tuple[str, str]", limit: int | None
) -> None:
    with pytest.raises(ContextLengthError, match="truncate_prompt_tokens"):
        make(wordpiece, limit).encode(prompt(content))


def test_no_room_for_text_is_refused(wordpiece: ModelTokenizer) -> None:
    for content, limit in (("word", 2), (("word", "word"), 3)):
        with pytest.raises(RequestError, match="truncate_prompt_tokens must be more than"):
            make(wordpiece, limit).encode(prompt(content))


def test_forms_of_input() -> None:
    assert [item.content for item in parse_input("a")] == ["a"]
    assert [item.content for item in parse_input([1, 2])] == [[1, 2]]
    assert [item.param for item in parse_input([[1], [2]])] == ["input[0]", "input[1]"]
    assert len(parse_input(["a"] * 2048)) == 2048
    with pytest.raises(RequestError, match="2049"):
        parse_input([[1]] * 2049)


def test_base64_is_little_endian_float32() -> None:
    assert to_base64([1.0, -2.0]) == "AACAPwAAAMA="
