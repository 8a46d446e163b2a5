"""Masks of grammars on logits: bits to tokens, vocabularies of odd sizes, and rows that nothing is left of."""

import numpy as np
import pytest
import torch

from engined.protocol.plan import NewRequestData, SchedulerOutput
from engined.protocol.sampling import SamplingParams
from engined.worker.input_batch import BatchShape, InputBatch
from engined.worker.sampler.grammar_mask import apply_grammar_masks, unpack_masks
from engined.worker.sampler.metadata import gather_metadata
from engined.worker.sampler.penalties import TokenCounts
from engined.worker.sampler.sampler import sample

VOCAB_SIZE = 77


def pack(num_bytes: int, *rows: set[int]) -> bytes:
    return b"".join(sum(1 << token_id for token_id in row).to_bytes(num_bytes, "little") for row in rows)


def make_batch(params: SamplingParams, num_rows: int, counts: TokenCounts) -> InputBatch:
    batch = InputBatch(BatchShape(max_num_seqs=4, max_model_len=32, block_size=16))
    for number in range(num_rows):
        row = batch.add(
            NewRequestData(
                request_id=str(number),
                token_ids=[1, 2, 3],
                num_prompt_tokens=2,
                sampling=params,
                block_ids=[number],
                num_computed_tokens=0,
            )
        )
        counts.add_row(row, batch.token_ids[row, :2], batch.token_ids[row, 2:3])
    return batch


@pytest.mark.parametrize("num_bytes", [8, 12, 16])
def test_only_allowed_tokens_keep_their_logits(num_bytes: int) -> None:
    logits = torch.randn(3, VOCAB_SIZE)
    raw = logits.clone()
    allowed = [{0, 5, 63}, {7, 8, 9}]
    apply_grammar_masks(logits, unpack_masks([2, 0], pack(num_bytes, *allowed)))
    for row, token_ids in zip([2, 0], allowed, strict=True):
        assert set(torch.nonzero(torch.isfinite(logits[row])).flatten().tolist()) == token_ids
        assert torch.equal(logits[row, list(token_ids)], raw[row, list(token_ids)])
    assert torch.equal(logits[1], raw[1])


def test_masked_rows_draw_and_report_what_is_allowed() -> None:
    params = SamplingParams(max_tokens=9, temperature=1.5, seed=3, logprobs=2, repetition_penalty=1.2)
    counts = TokenCounts(4, VOCAB_SIZE)
    batch = make_batch(params, 3, counts)
    rows = batch.rows_of(["0", "1", "2"])
    masks = unpack_masks([1, 2], pack(12, {10, 70}, {4}))
    result = sample(torch.zeros(3, VOCAB_SIZE), gather_metadata(batch, counts, rows), masks)
    assert result.token_ids[1] in (10, 70) and result.token_ids[2] == 4
    assert result.logprobs[2].logprobs[0] == 0.0 and result.logprobs[1].logprobs[0] == pytest.approx(np.log(0.5))
    assert result.without_choice == [] and bool(result.is_finite.all())


def test_a_row_that_nothing_is_left_of_is_told() -> None:
    counts = TokenCounts(4, VOCAB_SIZE)
    batch = make_batch(SamplingParams(max_tokens=9, allowed_token_ids=(5, 6)), 2, counts)
    rows = batch.rows_of(["0", "1"])
    masks = unpack_masks([0, 1], pack(12, {10}, {6}))
    result = sample(torch.zeros(2, VOCAB_SIZE), gather_metadata(batch, counts, rows), masks)
    assert result.without_choice == [0] and result.token_ids[1] == 6


def test_forced_tokens_join_the_batch_and_the_counts() -> None:
    counts = TokenCounts(4, VOCAB_SIZE)
    batch = make_batch(SamplingParams(max_tokens=9, frequency_penalty=1.0), 1, counts)
    batch.apply(SchedulerOutput(step_id=1, forced_token_ids={"0": [8, 9, 8]}))
    [row] = batch.rows_of(["0"])
    counts.add_run(row, [8, 9, 8])
    assert batch.num_tokens[row] == 6 and batch.token_ids[row, 2:6].tolist() == [3, 8, 9, 8]
    _, in_output = counts.select(np.array([row]))
    assert in_output[0, [3, 8, 9]].tolist() == [1.0, 2.0, 1.0]
    counts.add_run(row + 1, [8])
