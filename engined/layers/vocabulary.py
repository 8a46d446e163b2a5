"""Embedding and output head, both shared by rows of the vocabulary, which is padded to a multiple of the ranks."""

import torch.nn.functional as F
from torch import Tensor, nn

from engined.checkpoint.partition import padded_vocab_size
from engined.layers.context import LayerContext
from engined.layers.tensor_spec import TensorSpec
from engined.layers.weight_method import LinearPart, WeightMethod


class VocabShard:
    """The rows of the vocabulary that this rank holds: `num_rows`, of which `wanted` exist in the checkpoint."""

    def __init__(self, vocab_size: int, context: LayerContext) -> None:
        shard = context.tp.shard(padded_vocab_size(vocab_size, context.tp.size))
        self.first_row = shard.start
        self.num_rows = shard.stop - shard.start
        self.wanted = slice(min(shard.start, vocab_size), min(shard.stop, vocab_size))


class VocabParallelEmbedding(nn.Module):
    """Token ids to vectors. A rank looks up the ids that it holds, and the ranks sum their results."""

    def __init__(self, vocab_size: int, hidden_size: int, context: LayerContext) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.tp = context.tp
        self.shard = VocabShard(vocab_size, context)
        self.weight = context.create_parameter(self.shard.num_rows, hidden_size)

    def forward(self, input_ids: Tensor) -> Tensor:
        """ids [num_tokens] -> [num_tokens, hidden_size]"""
        if self.tp.size == 1:
            return F.embedding(input_ids, self.weight)
        local_ids = input_ids - self.shard.first_row
        elsewhere = (local_ids < 0) | (local_ids >= self.shard.num_rows)
        vectors = F.embedding(local_ids.masked_fill(elsewhere, 0), self.weight)
        return self.tp.all_reduce(vectors.masked_fill_(elsewhere.unsqueeze(1), 0))

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the table."""
        wanted, hidden_size = self.shard.wanted, self.weight.shape[1]
        return [
            TensorSpec(
                name=f"{name}.weight",
                shape=(self.vocab_size, hidden_size),
                slices=(wanted, slice(0, hidden_size)),
                destination=self.weight[: wanted.stop - wanted.start],
            )
        ]


class ParallelLMHead(nn.Module):
    """Hidden states to logits. `tied_to` shares the embedding's table instead of having one."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        context: LayerContext,
        tied_to: VocabParallelEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.shape = (vocab_size, hidden_size)
        self.tp = context.tp
        self.shard = VocabShard(vocab_size, context)
        self.is_tied = tied_to is not None
        self.weight: WeightMethod = context.create_head(
            self.shard.num_rows, hidden_size, None if tied_to is None else tied_to.weight
        )

    def forward(self, hidden: Tensor) -> Tensor | None:
        """hidden [rows, hidden_size] -> logits [rows, vocab_size] on rank 0, None on the others."""
        logits = self.tp.gather_columns(self.weight.forward(hidden, None))
        return None if logits is None else logits[:, : self.shape[0]]

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the head; nothing if it is tied."""
        if self.is_tied:
            return []
        columns = slice(0, self.shape[1])
        part = LinearPart(name=name, shape=self.shape, rows=self.shard.wanted, columns=columns, first_row=0)
        return self.weight.tensor_specs(part)
