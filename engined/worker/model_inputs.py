"""Turns the plan of a step and the persistent batch into the flat inputs of one forward. Used by the model runner."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engined.attention.metadata import AttentionMetadata
from engined.worker.input_batch import InputBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """One step, flat: requests with one query token come first, the others after them. N requests, T tokens."""

    rows: NDArray[np.int64]
    """[N] batch row of each request, in the order of the flat batch."""
    num_scheduled: NDArray[np.int64]
    """[N] tokens of each request in this step."""
    query_start: NDArray[np.int64]
    """[N + 1] where each request's tokens begin in the flat batch."""
    input_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64"""
    attention: AttentionMetadata
    sampling_requests: NDArray[np.int64]
    """[S] indices into `rows` of the requests whose last known token is computed now: they sample."""

    @property
    def logits_indices(self) -> NDArray[np.int64]:
        """[S] flat positions whose logits are sampled from."""
        return self.query_start[1:][self.sampling_requests] - 1


def build_inputs(batch: InputBatch) -> ModelInputs:
    """Build the inputs of the step whose plan was applied to the batch last."""
    rows, num_scheduled = batch.scheduled_rows, batch.num_scheduled_tokens
    is_decoding = num_scheduled == 1
    num_decodes = int(np.count_nonzero(is_decoding))
    flat_rows = rows
    positions = computed = batch.num_computed_tokens[rows]
    query_start = np.arange(len(rows) + 1)
    if num_decodes < len(rows):
        order = np.argsort(~is_decoding, kind="stable")
        rows, num_scheduled, computed = rows[order], num_scheduled[order], computed[order]
        np.cumsum(num_scheduled, out=query_start[1:])
        flat_rows = np.repeat(rows, num_scheduled)
        # Flat index minus the start of its request is the offset inside the request's share of this step.
        positions = np.arange(len(flat_rows)) + np.repeat(computed - query_start[:-1], num_scheduled)
    seq_lens = computed + num_scheduled
    block_size = batch.shape.block_size
    block_indices, offsets = np.divmod(positions, block_size)
    blocks = batch.block_table[flat_rows, block_indices]
    max_seq_len = int(seq_lens.max())
    attention = AttentionMetadata(
        query_start_loc=torch.from_numpy(query_start),
        seq_lens=torch.from_numpy(seq_lens),
        slot_mapping=torch.from_numpy(blocks * block_size + offsets),
        block_table=torch.from_numpy(batch.block_table[rows, : -(-max_seq_len // block_size)]),
        num_decodes=num_decodes,
        max_seq_len=max_seq_len,
    )
    return ModelInputs(
        rows=rows,
        num_scheduled=num_scheduled,
        query_start=query_start,
        input_ids=torch.from_numpy(batch.token_ids[flat_rows, positions].astype(np.int64)),
        positions=torch.from_numpy(positions),
        attention=attention,
        sampling_requests=np.flatnonzero(seq_lens == batch.num_tokens[rows]),
    )
