"""The group of ranks that share every layer. A rank makes one and hands it to its model; nothing here is global."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallelGroup:
    """This rank's place among `size` ranks, and how they exchange tensors (gloo on a CPU, NCCL on CUDA).

    At size 1 nothing is exchanged and torch.distributed is not touched.
    """

    rank: int = 0
    size: int = 1
    process_group: dist.ProcessGroup | None = None
    """None: the default group, which the worker initialised. Not used at size 1."""

    def shard(self, total: int) -> slice:
        """This rank's even share of `total`, which `size` must divide."""
        assert total % self.size == 0, f"{total} cannot be shared by {self.size} ranks"
        share = total // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over ranks, of the same shape as `values`, which may be overwritten."""
        if self.size > 1:
            dist.all_reduce(values, group=self.process_group)
        return values

    def gather_columns(self, values: Tensor) -> Tensor | None:
        """On rank 0 the columns of all ranks side by side, [rows, size * columns]; None elsewhere."""
        if self.size == 1:
            return values
        values = values.contiguous()
        if self.rank > 0:
            dist.gather(values, group=self.process_group, group_dst=0)
            return None
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.gather(values, parts, group=self.process_group, group_dst=0)
        return torch.cat(parts, dim=-1)

    def broadcast(self, values: Tensor) -> None:
        """Overwrite `values` with those of rank 0, in place."""
        if self.size > 1:
            dist.broadcast(values, group=self.process_group, group_src=0)
