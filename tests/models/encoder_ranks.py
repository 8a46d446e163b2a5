"""What each process of the encoder's tensor parallel test runs. Apart from the test: a rank imports no transformers."""

import torch
import torch.distributed as dist

from engined.checkpoint.load import load_model_info
from engined.layers.context import LayerContext
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.bert import EncoderInputs
from engined.models.loader import open_checkpoint
from engined.models.registry import build_encoder


def rank_main(rank: int, folder: str, sequences: list[list[int]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    group = TensorParallelGroup(rank=rank, size=2)
    info = load_model_info(folder)
    model = build_encoder(info, LayerContext(dtype=torch.float32, device=torch.device("cpu"), tp=group))
    model.load(open_checkpoint(info))
    lengths = [len(sequence) for sequence in sequences]
    inputs = EncoderInputs(
        input_ids=torch.tensor([token for sequence in sequences for token in sequence]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        token_type_ids=torch.zeros(sum(lengths), dtype=torch.int64),
        lengths=lengths,
    )
    with torch.inference_mode():
        scores = model.score(model(inputs)[:1])[0]
    if rank == 0:
        torch.save(scores, f"{folder}/scores.pt")
    dist.destroy_process_group()
