"""What the sampler must know about the rows of one step, gathered once from the persistent batch."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engined.protocol.sampling import SamplingParams
from engined.worker.input_batch import InputBatch
from engined.worker.sampler.penalties import TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMetadata:
    """S rows of logits, one for each request that samples in this step."""

    params: list[SamplingParams]
    """[S]"""
    outputs: list[NDArray[np.int32]]
    """[S] tokens that each request has generated so far."""
    counts: list[TokenCounts | None]
    """[S] token counts of the requests with a penalty."""
    temperature: torch.Tensor
    """[S] float32"""
    seeds: NDArray[np.uint64]
    """[S]"""
    num_output_tokens: NDArray[np.int64]
    """[S]"""


def gather_metadata(batch: InputBatch, counts: dict[int, TokenCounts], rows: NDArray[np.int64]) -> SamplingMetadata:
    """Collect the metadata of batch `rows` [S]; `counts` holds the token counts of rows with a penalty."""
    params: list[SamplingParams] = []
    outputs: list[NDArray[np.int32]] = []
    for row in rows.tolist():
        row_params = batch.sampling[row]
        assert row_params is not None, f"row {row} samples but is free"
        params.append(row_params)
        outputs.append(batch.token_ids[row, batch.num_prompt_tokens[row] : batch.num_tokens[row]])
    return SamplingMetadata(
        params=params,
        outputs=outputs,
        counts=[counts.get(row) for row in rows.tolist()],
        temperature=torch.from_numpy(batch.temperature[rows]),
        seeds=batch.seed[rows],
        num_output_tokens=batch.num_tokens[rows] - batch.num_prompt_tokens[rows],
    )
