"""The persistent batch of one rank: what it knows of the requests that run, as numpy columns that live across steps.

A request keeps its row from the plan that brings it to the plan that removes it. Every column of a row is written when
the row is taken, so nothing of an earlier request can leak into it. Used by the model runner only.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engined.protocol.plan import NewRequestData, SchedulerOutput
from engined.protocol.pooling import PoolingParams
from engined.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Sizes of the batch."""

    max_num_seqs: int
    max_model_len: int
    block_size: int


class InputBatch:
    """Rows of running requests. `rows[i]` below is always a row number, R the number of rows, T of token columns."""

    def __init__(self, shape: BatchShape) -> None:
        rows = shape.max_num_seqs
        self.shape = shape
        # One column more than the longest sequence: the token sampled last is stored, though never computed.
        self.token_ids = np.zeros((rows, shape.max_model_len + 1), dtype=np.int32)  # [R, T]
        self.block_table = np.zeros((rows, -(-shape.max_model_len // shape.block_size)), dtype=np.int64)  # [R, B]
        self.num_tokens = np.zeros(rows, dtype=np.int64)  # [R]
        self.num_computed_tokens = np.zeros(rows, dtype=np.int64)  # [R]
        self.num_prompt_tokens = np.zeros(rows, dtype=np.int64)  # [R]
        self.num_blocks = np.zeros(rows, dtype=np.int64)  # [R]
        self.sampling: list[SamplingParams | None] = [None] * rows
        self.pooling: list[PoolingParams | None] = [None] * rows
        self.temperature = np.zeros(rows, dtype=np.float32)  # [R]
        self.seed = np.zeros(rows, dtype=np.uint64)  # [R]
        self.is_plain = np.zeros(rows, dtype=np.bool_)  # [R]
        self.request_ids: list[str] = [""] * rows
        self.scheduled_rows = np.zeros(0, dtype=np.int64)
        """[N] of the requests of the last plan, in its order."""
        self.num_scheduled_tokens = np.zeros(0, dtype=np.int64)
        """[N] of each of them."""
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(rows - 1, -1, -1))

    def rows_of(self, request_ids: Collection[str]) -> NDArray[np.int64]:
        """[N] rows of N requests that are in the batch."""
        return np.fromiter(map(self._row_of.__getitem__, request_ids), dtype=np.int64, count=len(request_ids))

    def remove(self, request_id: str) -> int | None:
        """Free the row of a request; returns it, or None if the request never reached this batch."""
        row = self._row_of.pop(request_id, None)
        if row is not None:
            self.sampling[row] = self.pooling[row] = None
            self._free_rows.append(row)
        return row

    def add(self, new: NewRequestData) -> int:
        """Give a request a row and fill all its columns; returns the row."""
        row = self._free_rows.pop()
        self._row_of[new.request_id] = row
        self.request_ids[row] = new.request_id
        self.token_ids[row, : len(new.token_ids)] = new.token_ids
        self.num_tokens[row] = len(new.token_ids)
        self.num_computed_tokens[row] = new.num_computed_tokens
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        # Behind its last block a row names one of its own: attention may read on there, and hides what it finds.
        self.block_table[row] = new.block_ids[0]
        self.num_blocks[row] = 0
        self.append_blocks(row, new.block_ids)
        self.sampling[row] = new.sampling
        self.pooling[row] = new.pooling
        self.temperature[row] = new.sampling.temperature
        self.seed[row] = new.sampling.seed
        self.is_plain[row] = new.sampling.is_plain
        return row

    def append_blocks(self, row: int, block_ids: list[int]) -> None:
        """Extend the block table of a row."""
        start = self.num_blocks[row]
        self.block_table[row, start : start + len(block_ids)] = block_ids
        self.num_blocks[row] = start + len(block_ids)

    def append_sampled(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Store one sampled token for each of `rows`."""
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1

    def append_forced(self, row: int, token_ids: list[int]) -> None:
        """Store tokens that a row got without sampling them."""
        start = self.num_tokens[row]
        self.token_ids[row, start : start + len(token_ids)] = token_ids
        self.num_tokens[row] = start + len(token_ids)

    def apply(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        """Bring the batch up to date with a plan; returns the rows that were freed and those that were filled."""
        removed = [row for request_id in plan.removed_request_ids if (row := self.remove(request_id)) is not None]
        added = [self.add(new) for new in plan.new_requests]
        for request_id, block_ids in plan.new_block_ids.items():
            self.append_blocks(self._row_of[request_id], block_ids)
        for request_id, token_ids in plan.forced_token_ids.items():
            self.append_forced(self._row_of[request_id], token_ids)
        if not plan.is_repeat:
            scheduled = plan.num_scheduled_tokens
            self.scheduled_rows = self.rows_of(scheduled)
            self.num_scheduled_tokens = np.fromiter(scheduled.values(), dtype=np.int64, count=len(scheduled))
        return removed, added
