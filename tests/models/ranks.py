"""What each process of the tensor parallel test runs. Apart from the test, so that a rank imports no transformers."""

import torch
import torch.distributed as dist

from engined.checkpoint.load import load_model_info
from engined.layers.tensor_parallel import TensorParallelGroup
from tests.models.paged import PagedModel

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 130], [130], [2, 7, 1, 8, 2, 8]]


def run(paged: PagedModel) -> list[torch.Tensor | None]:
    """Logits of two prefills, then of all three sequences in one batch."""
    first, second, third = (paged.add_sequence() for _ in PROMPTS)
    return [
        paged.step({first: PROMPTS[0][:6], third: PROMPTS[2]}),
        paged.step({second: PROMPTS[1], third: [11], first: PROMPTS[0][6:]}),
    ]


def rank_main(rank: int, folder: str, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{dtype}", rank=rank, world_size=2)
    group = TensorParallelGroup(rank=rank, size=2)
    outputs = run(PagedModel(load_model_info(folder), group, dtype, dtype))
    if rank == 0:
        torch.save(outputs, f"{folder}/logits-{dtype}.pt")
    else:
        assert outputs == [None, None]
    dist.destroy_process_group()
