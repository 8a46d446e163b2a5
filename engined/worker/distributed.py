"""Joins a rank to its process group: gloo for tensors on a CPU, NCCL for those on a CUDA device."""

from datetime import timedelta

import torch
import torch.distributed

from engined.errors import StartupError
from engined.layers.tensor_parallel import TensorParallelGroup

# It holds for the meeting and for every collective. A rank that has loaded waits for one whose disk is slower, however
# long that takes: the core ends a group that makes no progress, and says which step it hung in.
_TIMEOUT = timedelta(days=1)


def create_group(rank: int, size: int, rendezvous: str | None, device: torch.device) -> TensorParallelGroup:
    """The group of this rank, for tensors on `device`. A single rank needs no process group at all.

    Raises StartupError when the other ranks do not show up.
    """
    if size == 1:
        return TensorParallelGroup()
    assert rendezvous is not None, "several ranks need a rendezvous file"
    try:
        torch.distributed.init_process_group(
            backend="nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=size,
            timeout=_TIMEOUT,
        )
    except (RuntimeError, ValueError) as error:
        raise StartupError(f"Worker_TP{rank} could not join the other {size - 1} ranks: {error}") from error
    return TensorParallelGroup(rank=rank, size=size)
