"""`LLM` with an encoder: vectors and scores."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from engined import LLM
from engined.errors import ContextLengthError, RequestError

TEXTS = ["A cat sits on the mat.", "Ein Hund bellt.", "The kitten lies on the carpet."]


@pytest.fixture(scope="module")
def encoder(minilm: Path) -> Iterator[LLM]:
    with LLM(minilm, dtype="float32", num_threads=1) as llm:
        yield llm


def cosine(one: list[float], other: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def test_embeddings_are_in_order_and_normalized(encoder: LLM) -> None:
    outputs = encoder.embed(TEXTS * 20, use_tqdm=False)
    vectors = [output.embedding for output in outputs]
    for index, text in enumerate(TEXTS):
        [alone] = encoder.embed(text, use_tqdm=False)
        assert alone.prompt_token_ids == outputs[index].prompt_token_ids
        for vector in vectors[index :: len(TEXTS)]:
            assert vector == pytest.approx(alone.embedding, abs=1e-5)
    assert len(vectors[0]) == 384
    assert cosine(vectors[0], vectors[0]) == pytest.approx(1.0)
    assert cosine(vectors[0], vectors[2]) > 0.5 > cosine(vectors[0], vectors[1])


def test_token_ids_and_scores(encoder: LLM) -> None:
    one, other = encoder.embed([TEXTS[0], TEXTS[2]], use_tqdm=False)
    [again] = encoder.embed(one.prompt_token_ids, use_tqdm=False)
    assert again.embedding == pytest.approx(one.embedding, abs=1e-5)
    scores = encoder.score(TEXTS[0], [TEXTS[2], TEXTS[0]], use_tqdm=False)
    assert scores == pytest.approx([cosine(one.embedding, other.embedding), 1.0], abs=1e-5)


def test_what_is_wrong_is_named(encoder: LLM) -> None:
    with pytest.raises(ContextLengthError, match=r"^texts\[1\]: "):
        encoder.embed(["good", "word " * 9000])
    with pytest.raises(RequestError, match=r"^texts\[1\]: input is an empty text"):
        encoder.embed(["good", ""])
    with pytest.raises(RequestError, match="makes embeddings; use embed or score"):
        encoder.generate("text")
    with pytest.raises(RequestError, match="text_1 has 2 texts and text_2 3"):
        encoder.score(TEXTS[:2], TEXTS)
