"""Pooled results against transformers, through scheduler, cache and worker: encoders, and decoders by their last token.

Whatever else is in the batch, in chunks or from the prefix cache, a sequence has the same result.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from engined.checkpoint.model_info import PoolingType
from engined.errors import RequestError
from engined.protocol.pooling import PoolingParams
from tests.models.encoders import make_encoder, random_tokens, reference_output, write_pooling
from tests.models.families import make_reference
from tests.worker.pooling_engine import PoolingEngine

RAW = PoolingParams(normalize=False)
PROMPTS = [random_tokens(length, seed=length) for length in (7, 40, 1, 33, 16, 20)]
TEXTS = ["A short text.", "The quick brown fox jumps over the lazy dog. " * 20, "Two", "Ein Satz über Bäume, in UTF-8."]


def assert_near(actual: Sequence[Sequence[float]], expected: Sequence[torch.Tensor], tolerance: float) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(torch.tensor(one), other, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("mode", "pooling_type"), [("mean_tokens", "mean"), ("cls_token", "cls"), ("lasttoken", "last")]
)
def test_encoder_by_the_files_of_its_author(mode: str, pooling_type: PoolingType, tmp_path: Path) -> None:
    reference = make_encoder("bert")
    reference.save_pretrained(tmp_path)
    write_pooling(tmp_path, mode, normalize=False)
    pooled = {"mean": lambda x: x.mean(0), "cls": lambda x: x[0], "last": lambda x: x[-1]}[pooling_type]
    expected = [pooled(reference_output(reference, prompt)) for prompt in PROMPTS]
    assert_near(PoolingEngine(tmp_path).pool(PROMPTS), expected, 1e-4)


def test_an_encoder_whose_author_normalizes(tmp_path: Path) -> None:
    reference = make_encoder("bert")
    reference.save_pretrained(tmp_path)
    write_pooling(tmp_path, "cls_token")
    states = [reference_output(reference, prompt)[0] for prompt in PROMPTS]
    engine = PoolingEngine(tmp_path)
    assert_near(engine.pool(PROMPTS), [F.normalize(state, dim=0) for state in states], 1e-4)
    assert_near(engine.pool(PROMPTS[:1], RAW), states[:1], 1e-4)
    (short,) = engine.pool(PROMPTS[:1], PoolingParams(dimensions=8))
    assert_near([short], [F.normalize(states[0][:8], dim=0)], 1e-4)


def test_cross_encoder(tmp_path: Path) -> None:
    """With one label the score goes through a sigmoid, and segments tell the two texts apart."""
    reference = make_encoder("bert-score")
    reference.save_pretrained(tmp_path)
    segments = [[0] * 3 + [1] * (len(prompt) - 3) for prompt in PROMPTS[:2]]
    logits = [reference_output(reference, prompt, types) for prompt, types in zip(PROMPTS, segments, strict=False)]
    params = [PoolingParams(token_type_ids=types) for types in segments]
    engine = PoolingEngine(tmp_path)
    assert_near(engine.pool(PROMPTS[:2], *params), [torch.sigmoid(logit) for logit in logits], 1e-4)
    raw = [replace(wish, normalize=False) for wish in params]
    assert_near(engine.pool(PROMPTS[:2], *raw), logits, 1e-4)


def test_a_cross_encoder_without_segments(tmp_path: Path) -> None:
    """RoBERTa has one kind only, whatever the tokenizer says of a pair."""
    reference = make_encoder("roberta-score")
    reference.save_pretrained(tmp_path)
    params = PoolingParams(token_type_ids=[0] * 3 + [1] * 4)
    expected = torch.sigmoid(reference_output(reference, PROMPTS[0]))
    assert_near(PoolingEngine(tmp_path).pool(PROMPTS[:1], params), [expected], 1e-4)


def test_segments_must_fit_the_prompt_and_the_model(tmp_path: Path) -> None:
    make_encoder("bert-score").save_pretrained(tmp_path)
    engine = PoolingEngine(tmp_path)
    for types in ([0] * 6, [0] * 6 + [2]):
        with pytest.raises(RequestError, match="token_type_ids must give each of the 7 tokens a segment below 2"):
            engine.pool(PROMPTS[:1], PoolingParams(token_type_ids=types))


def test_one_sequence_that_is_not_finite_fails_alone(tmp_path: Path) -> None:
    make_encoder("bert").save_pretrained(tmp_path)
    tensors: dict[str, Any] = load_file(tmp_path / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][99] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    engine = PoolingEngine(tmp_path)
    alone = engine.pool([[5, 6]])
    assert engine.pool([[99, 6], [5, 6]]) == alone
    assert engine.errors == ["the model produced a result that is not finite"]


def last_states(reference: Any, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Normalized states of the last tokens, after the final norm."""
    with torch.inference_mode():
        outputs = [reference.model(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in prompts]
    return [F.normalize(state, dim=0) for state in outputs]


@pytest.mark.parametrize("variant", ["qwen3-tied", "llama"])
@pytest.mark.parametrize("budget", [512, 16])
def test_decoder_by_its_last_token(variant: str, budget: int, tmp_path: Path) -> None:
    """At once and in chunks; then again, from the prefix cache."""
    reference = make_reference(variant)
    reference.save_pretrained(tmp_path)
    write_pooling(tmp_path, "lasttoken")
    engine = PoolingEngine(tmp_path, max_num_batched_tokens=budget, max_num_seqs=8)
    expected = last_states(reference, PROMPTS)
    assert_near(engine.pool(PROMPTS), expected, 1e-4)
    assert sum(engine.num_cached_tokens) == 0
    assert_near(engine.pool(PROMPTS), expected, 1e-4)
    assert engine.num_cached_tokens == [0, 32, 0, 32, 0, 16]


def test_decoder_that_was_saved_without_its_head(tmp_path: Path) -> None:
    """Its tensors have no prefix, and its architecture alone says that it pools."""
    reference = make_reference("qwen3")
    reference.model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen3Model"]
    assert "layers.0.mlp.up_proj.weight" in load_file(tmp_path / "model.safetensors")
    assert_near(PoolingEngine(tmp_path).pool(PROMPTS), last_states(reference, PROMPTS), 1e-4)


@pytest.fixture(scope="module")
def real_engine(minilm: Path) -> PoolingEngine:
    return PoolingEngine(minilm)


@pytest.fixture(scope="module")
def texts(minilm: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    ids: list[list[int]] = [tokenizer(text).input_ids for text in TEXTS]
    return ids


def test_real_weights_equal_transformers(minilm: Path, real_engine: PoolingEngine, texts: list[list[int]]) -> None:
    reference = AutoModel.from_pretrained(minilm).eval()
    expected = [F.normalize(reference_output(reference, tokens).mean(0), dim=0) for tokens in texts]
    assert_near(real_engine.pool(texts), expected, 1e-4)


def test_real_weights_give_the_same_alone(real_engine: PoolingEngine, texts: list[list[int]]) -> None:
    together = real_engine.pool(texts)
    alone = [real_engine.pool([tokens])[0] for tokens in texts]
    assert_near(together, [torch.tensor(vector) for vector in alone], 1e-5)
