"""What the sampler must know about the rows of one step, gathered once from the persistent batch."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engined.protocol.sampling import SamplingParams
from engined.worker.input_batch import InputBatch
from engined.worker.sampler.penalties import TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyTables:
    """P of the S rows have a penalty."""

    rows: list[int]
    """[P] which of the S rows."""
    in_prompt: torch.Tensor
    """[P, V] bool"""
    in_output: torch.Tensor
    """[P, V] float32: how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDetails:
    """What the S rows want beyond a draw from their logits."""

    params: list[SamplingParams]
    """[S]"""
    outputs: list[NDArray[np.int32]]
    """[S] tokens that each request has generated so far."""
    penalties: PenaltyTables | None
    """What the rows with a penalty need; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMetadata:
    """S rows of logits, one for each request that samples in this step."""

    details: SamplingDetails | None
    """None if all rows are plain."""
    temperature: torch.Tensor
    """[S] float32"""
    seeds: NDArray[np.uint64]
    """[S]"""
    num_output_tokens: NDArray[np.int64]
    """[S]"""


def gather_metadata(batch: InputBatch, counts: TokenCounts, rows: NDArray[np.int64]) -> SamplingMetadata:
    """Collect the metadata of batch `rows` [S]."""
    return SamplingMetadata(
        details=None if batch.is_plain[rows].all() else _gather_details(batch, counts, rows),
        temperature=torch.from_numpy(batch.temperature[rows]),
        seeds=batch.seed[rows],
        num_output_tokens=batch.num_tokens[rows] - batch.num_prompt_tokens[rows],
    )


def _gather_details(batch: InputBatch, counts: TokenCounts, rows: NDArray[np.int64]) -> SamplingDetails:
    params: list[SamplingParams] = []
    outputs: list[NDArray[np.int32]] = []
    for row in rows.tolist():
        row_params = batch.sampling[row]
        assert row_params is not None, f"row {row} samples but is free"
        params.append(row_params)
        outputs.append(batch.token_ids[row, batch.num_prompt_tokens[row] : batch.num_tokens[row]])
    return SamplingDetails(params=params, outputs=outputs, penalties=_gather_penalties(counts, rows))


def _gather_penalties(counts: TokenCounts, rows: NDArray[np.int64]) -> PenaltyTables | None:
    counted = counts.rows
    selected = [index for index, row in enumerate(rows.tolist()) if row in counted] if counted else []
    if not selected:
        return None
    in_prompt, in_output = counts.select(rows[selected])
    return PenaltyTables(rows=selected, in_prompt=in_prompt, in_output=in_output)
