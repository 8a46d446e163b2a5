"""Each sampling parameter against an independent reference, alone and side by side with others in one batch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from engined.protocol.plan import NewRequestData
from engined.protocol.sampling import SamplingParams
from engined.worker.input_batch import BatchShape, InputBatch
from engined.worker.sampler.metadata import SamplingMetadata, gather_metadata
from engined.worker.sampler.penalties import TokenCounts
from engined.worker.sampler.random import uniform
from engined.worker.sampler.sampler import apply_constraints, sample, scale_and_truncate

VOCAB = 211
PROMPT = [3, 7, 7, 11, 150]
OUTPUT = [7, 20, 21, 20]

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.9},
    "top_k": {"top_k": 5},
    "top_k_one": {"top_k": 1},
    "top_p": {"top_p": 0.6},
    "tiny_top_p": {"top_p": 0.001},
    "min_p": {"min_p": 0.2},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -0.8},
    "logit_bias": {"logit_bias": ((20, 4.0), (7, -50.0))},
    "allowed": {"allowed_token_ids": (1, 5, 20, 200)},
    "bad_words": {"bad_words_ids": ((33,), (20, 9), (21, 20, 10), (99, 12))},
    "min_tokens": {"min_tokens": 6, "stop_token_ids": (4, 20), "eos_token_ids": (2,)},
    "min_tokens_reached": {"min_tokens": 4, "stop_token_ids": (4, 20), "eos_token_ids": (2,)},
    "min_tokens_ignore_eos": {"min_tokens": 6, "eos_token_ids": (2,), "ignore_eos": True},
    "everything": {
        "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1,
        "presence_penalty": 0.3, "frequency_penalty": 0.2, "logit_bias": ((20, 2.0),), "bad_words_ids": ((33,),),
    },
}  # fmt: skip


def make_params(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **changes)


def make_batch(params: list[SamplingParams]) -> SamplingMetadata:
    batch = InputBatch(BatchShape(len(params), 64, 16))
    counts = TokenCounts(len(params), VOCAB)
    for index, request_params in enumerate(params):
        new = NewRequestData(
            request_id=str(index),
            token_ids=PROMPT + OUTPUT,
            num_prompt_tokens=len(PROMPT),
            sampling=request_params,
            block_ids=[0],
            num_computed_tokens=0,
        )
        row = batch.add(new)
        if request_params.has_penalty:
            counts.add_row(row, np.array(PROMPT, np.int32), np.array(OUTPUT[:-1], np.int32))
            counts.add_tokens(np.array([row]), torch.tensor(OUTPUT[-1:]))
    rows = batch.rows_of([str(index) for index in range(len(params))])
    return gather_metadata(batch, counts, rows)


def probabilities(logits: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    metadata = make_batch(params)
    logits = logits.clone()
    if metadata.details is not None:
        apply_constraints(logits, metadata.details)
    return scale_and_truncate(logits, metadata.temperature, params).softmax(dim=-1)


def reference(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """One row [V] by numpy for what transformers lacks, and by transformers' own processors for the rest."""
    row = logits.numpy().astype(np.float64)
    if params.allowed_token_ids is not None:
        row = np.array([x if i in params.allowed_token_ids else -np.inf for i, x in enumerate(row)])
    for *beginning, last in params.bad_words_ids:
        if OUTPUT[len(OUTPUT) - len(beginning) :] == beginning:
            row[last] = -np.inf
    if len(OUTPUT) < params.min_tokens:
        for token in (*params.stop_token_ids, *(() if params.ignore_eos else params.eos_token_ids)):
            row[token] = -np.inf
    for token, bias in params.logit_bias:
        row[token] += bias
    scores = torch.from_numpy(row).unsqueeze(0)
    if params.repetition_penalty != 1.0:
        processor = transformers.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)
        scores = processor(torch.tensor([PROMPT + OUTPUT]), scores)
    for token in set(OUTPUT):
        scores[0, token] -= params.frequency_penalty * OUTPUT.count(token) + params.presence_penalty
    warpers: list[Any] = [transformers.TemperatureLogitsWarper(params.temperature)]
    if params.min_p:
        warpers.append(transformers.MinPLogitsWarper(params.min_p))
    if params.top_k:
        warpers.append(transformers.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(transformers.TopPLogitsWarper(params.top_p))
    for warper in warpers:
        scores = warper(torch.tensor([PROMPT + OUTPUT]), scores)
    return scores.softmax(dim=-1)[0].float()


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(len(CASES), VOCAB, generator=torch.Generator().manual_seed(5)) * 3


@pytest.mark.parametrize("name", CASES)
def test_alone(name: str, logits: torch.Tensor) -> None:
    params = make_params(**CASES[name])
    torch.testing.assert_close(
        probabilities(logits[:1], [params])[0], reference(logits[0], params), atol=1e-5, rtol=1e-4
    )


def test_side_by_side(logits: torch.Tensor) -> None:
    params = [make_params(**case) for case in CASES.values()]
    expected = torch.stack([reference(row, p) for row, p in zip(logits, params, strict=True)])
    torch.testing.assert_close(probabilities(logits, params), expected, atol=1e-5, rtol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours(logits: torch.Tensor) -> None:
    params = [make_params(seed=index, **case) for index, case in enumerate(CASES.values())]
    together = sample(logits.clone(), make_batch(params)).token_ids
    alone = [int(sample(logits[i : i + 1].clone(), make_batch([p])).token_ids) for i, p in enumerate(params)]
    assert together.tolist() == alone


def test_greedy_takes_the_argmax_after_constraints(logits: torch.Tensor) -> None:
    best = int(logits[0].argmax())
    params = [
        make_params(temperature=0.0),
        make_params(temperature=0.0, logit_bias=((9, 100.0),)),
        make_params(temperature=0.0, bad_words_ids=((best,),)),
    ]
    token_ids = sample(logits[:1].repeat(3, 1), make_batch(params)).token_ids.tolist()
    assert token_ids[:2] == [best, 9]
    assert token_ids[2] == int(logits[0].topk(2).indices[1])


def test_draws_follow_the_distribution(logits: torch.Tensor) -> None:
    """20,000 draws of 20 tokens: chi-square with 19 degrees of freedom stays below its 99.99 % point, 51.4."""
    row = logits[0, :20]
    num_draws = 20_000
    params = [make_params(seed=seed) for seed in range(num_draws)]
    counts = np.bincount(sample(row.repeat(num_draws, 1), make_batch(params)).token_ids.numpy(), minlength=20)
    expected = row.softmax(dim=-1).numpy() * num_draws
    assert float(((counts - expected) ** 2 / expected).sum()) < 51.4


def test_never_draws_a_dropped_token() -> None:
    logits = torch.zeros(2000, 50)
    params = [make_params(seed=seed, allowed_token_ids=(0, 17, 49)) for seed in range(2000)]
    assert set(sample(logits, make_batch(params)).token_ids.tolist()) == {0, 17, 49}


def test_uniform_is_uniform_along_seeds_and_positions() -> None:
    positions = np.arange(100_000)
    for numbers in (
        uniform(np.full(100_000, 3, np.uint64), positions),
        uniform(positions.astype(np.uint64), np.zeros(100_000, np.int64)),
        uniform(np.array([2**64 - 1], np.uint64), np.array([2**40])),
    ):
        assert 0 <= numbers.min() <= numbers.max() < 1
    histogram, _ = np.histogram(uniform(np.full(100_000, 3, np.uint64), positions), bins=100)
    assert float(((histogram - 1000) ** 2 / 1000).sum()) < 161  # 99.99 % point of chi-square with 99 degrees


def test_logprobs_come_from_the_raw_logits(logits: torch.Tensor) -> None:
    params = [
        make_params(temperature=0.3, logprobs=3, repetition_penalty=2.0, top_k=1),
        make_params(),
        make_params(temperature=0.0, logprobs=0, logit_bias=((9, 100.0),)),
    ]
    expected = logits[:3].log_softmax(dim=-1)
    output = sample(logits[:3].clone(), make_batch(params))
    assert sorted(output.logprobs) == [0, 2]
    first, last = output.logprobs[0], output.logprobs[2]
    best = expected[0].topk(3)
    assert first.token_ids == [int(output.token_ids[0]), *best.indices.tolist()]
    assert first.logprobs == pytest.approx([expected[0, first.token_ids[0]].item(), *best.values.tolist()], abs=1e-6)
    assert last.token_ids == [9]
    assert last.rank == int((expected[2] > expected[2, 9]).sum()) + 1
    assert last.logprobs == pytest.approx([expected[2, 9].item()], abs=1e-6)


def test_not_finite_rows_are_reported(logits: torch.Tensor) -> None:
    logits = logits[:4].clone()
    logits[1, 5] = float("nan")
    logits[3, 5] = float("inf")
    params = [make_params(temperature=t) for t in (0.0, 1.0, 1.0, 0.0)]
    assert sample(logits, make_batch(params)).is_finite.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    "wish",
    [
        {"min_tokens": 1},
        {"min_p": 0.1},
        {"top_k": 3},
        {"top_p": 0.9},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"logit_bias": ((3, 1.0),)},
        {"allowed_token_ids": (3,)},
        {"bad_words_ids": ((3,),)},
        {"logprobs": 0},
    ],
)
def test_a_row_that_wants_anything_more_is_not_plain(wish: dict[str, Any]) -> None:
    plain = SamplingParams(max_tokens=9, temperature=0.7, seed=3, stop_token_ids=(5,), ignore_eos=True)
    assert plain.is_plain
    assert not replace(plain, **wish).is_plain


def test_greedy_rows_are_plain_whatever_would_cut_a_draw() -> None:
    assert SamplingParams(max_tokens=9, temperature=0.0, top_k=3, top_p=0.5, min_p=0.1).is_plain
