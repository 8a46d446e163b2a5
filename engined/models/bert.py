"""The BERT family: BERT, and RoBERTa (XLM-RoBERTa too), which differs in its positions and in the names of its head.

(Devlin et al. 2018, arXiv 1810.04805; Liu et al. 2019, arXiv 1907.11692.) The encoder runner calls `forward`, and
`score` on the first state of each sequence if the model is a cross-encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engined.attention.encoder import attend_whole_sequences
from engined.checkpoint.model_info import Architecture, ModelInfo
from engined.layers.context import LayerContext
from engined.layers.layer_norm import LayerNorm
from engined.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.layers.tensor_spec import TensorSpec, whole
from engined.layers.vocabulary import VocabParallelEmbedding
from engined.models.checkpoint import Checkpoint
from engined.models.loader import load_tensors, pack_weights
from engined.process.progress import ProgressReporter, report_nothing

_PREFIXES: dict[Architecture, str] = {"bert": "bert.", "roberta": "roberta."}
"""What stands before the names of the encoder in files that were saved with a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInputs:
    """One step: whole sequences, one after the other. T tokens."""

    input_ids: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64, from 0 in each sequence"""
    token_type_ids: Tensor
    """[T] int64"""
    lengths: Sequence[int]
    """Tokens of each sequence."""


class BertEmbeddings(nn.Module):
    """The sum of what a token is, where it stands and in which segment, normed."""

    def __init__(self, info: ModelInfo, context: LayerContext) -> None:
        super().__init__()
        assert info.encoder is not None
        self.position_offset = info.encoder.position_offset
        self.words = VocabParallelEmbedding(info.vocab_size, info.hidden_size, context)
        self.positions = context.create_parameter(info.max_position + self.position_offset, info.hidden_size)
        self.token_types = context.create_parameter(info.encoder.type_vocab_size, info.hidden_size)
        self.norm = LayerNorm(info.hidden_size, info.encoder.layer_norm_eps, context)

    def forward(self, inputs: EncoderInputs) -> Tensor:
        """-> [T, hidden_size]"""
        positions = F.embedding(inputs.positions + self.position_offset, self.positions)
        token_types = F.embedding(inputs.token_type_ids, self.token_types)
        output: Tensor = self.norm(self.words(inputs.input_ids) + positions + token_types)
        return output

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the block."""
        return [
            *self.words.tensor_specs(f"{name}.word_embeddings"),
            whole(f"{name}.position_embeddings.weight", self.positions),
            whole(f"{name}.token_type_embeddings.weight", self.token_types),
            *self.norm.tensor_specs(f"{name}.LayerNorm"),
        ]


class BertLayer(nn.Module):
    """Attention and MLP; each is added to its input, and the sum normed. A rank computes whole heads."""

    def __init__(self, info: ModelInfo, context: LayerContext) -> None:
        super().__init__()
        assert info.encoder is not None
        hidden_size, epsilon = info.hidden_size, info.encoder.layer_norm_eps
        self.head_dim = info.head_dim
        head_counts = (info.num_attention_heads, info.num_kv_heads)
        self.qkv_proj = QKVParallelLinear(hidden_size, head_counts, info.head_dim, True, context)
        self.output_proj = RowParallelLinear(hidden_size, hidden_size, True, context)
        self.attention_norm = LayerNorm(hidden_size, epsilon, context)
        self.up_proj = ColumnParallelLinear(hidden_size, info.intermediate_size, True, context)
        self.down_proj = RowParallelLinear(info.intermediate_size, hidden_size, True, context)
        self.output_norm = LayerNorm(hidden_size, epsilon, context)

    def forward(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """hidden [T, hidden_size] -> the same shape"""
        queries, keys, values = self.qkv_proj(hidden).unflatten(1, (3, -1, self.head_dim)).unbind(1)
        attended = attend_whole_sequences(queries, keys, values, lengths)
        hidden = self.attention_norm(self.output_proj(attended) + hidden)
        output: Tensor = self.output_norm(self.down_proj(F.gelu(self.up_proj(hidden))) + hidden)
        return output

    def tensor_specs(self, name: str) -> list[TensorSpec]:
        """What to load, given the checkpoint's name of the layer."""
        attention = f"{name}.attention"
        return [
            *self.qkv_proj.tensor_specs([f"{attention}.self.{part}" for part in ("query", "key", "value")]),
            *self.output_proj.tensor_specs(f"{attention}.output.dense"),
            *self.attention_norm.tensor_specs(f"{attention}.output.LayerNorm"),
            *self.up_proj.tensor_specs([f"{name}.intermediate.dense"]),
            *self.down_proj.tensor_specs(f"{name}.output.dense"),
            *self.output_norm.tensor_specs(f"{name}.output.LayerNorm"),
        ]


class ScoreHead(nn.Module):
    """From the first state of a sequence to the scores of its labels. Every rank holds it whole: it is small."""

    def __init__(self, info: ModelInfo, context: LayerContext) -> None:
        super().__init__()
        alone = replace(context, tp=TensorParallelGroup())
        self.dense = ColumnParallelLinear(info.hidden_size, info.hidden_size, True, alone)
        self.output = ColumnParallelLinear(info.hidden_size, info.num_labels, True, alone)

    def forward(self, first_states: Tensor) -> Tensor:
        """[rows, hidden_size] -> [rows, num_labels]"""
        output: Tensor = self.output(torch.tanh(self.dense(first_states)))
        return output


class BertModel(nn.Module):
    """One rank's share of an encoder, with a head if it scores."""

    def __init__(self, info: ModelInfo, context: LayerContext) -> None:
        super().__init__()
        self.info = info
        self.embeddings = BertEmbeddings(info, context)
        self.layers = nn.ModuleList(BertLayer(info, context) for _ in range(info.num_layers))
        self.head = ScoreHead(info, context) if info.num_labels else None

    def forward(self, inputs: EncoderInputs) -> Tensor:
        """-> hidden states [T, hidden_size]"""
        hidden: Tensor = self.embeddings(inputs)
        for layer in self.layers:
            hidden = layer(hidden, inputs.lengths)
        return hidden

    def score(self, first_states: Tensor) -> Tensor:
        """Hidden states [rows, hidden_size] of first tokens -> raw scores [rows, num_labels]; only with a head."""
        assert self.head is not None, "the model has no head"
        scores: Tensor = self.head(first_states)
        return scores

    def tensor_specs(self, prefix: str) -> list[TensorSpec]:
        """Everything that this rank loads; `prefix` stands before the names of the encoder."""
        specs = self.embeddings.tensor_specs(f"{prefix}embeddings")
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, BertLayer)
            specs += layer.tensor_specs(f"{prefix}encoder.layer.{i}")
        if self.head is not None:
            is_bert = self.info.architecture == "bert"
            dense, output = (f"{prefix}pooler.dense", "classifier") if is_bert else _ROBERTA_HEAD
            specs += self.head.dense.tensor_specs([dense]) + self.head.output.tensor_specs([output])
        return specs

    def load(self, checkpoint: Checkpoint, report_progress: ProgressReporter = report_nothing) -> None:
        """Fill all weights. Raises CheckpointError, before anything is read, if the tensors do not fit the model."""
        prefix = _PREFIXES[self.info.architecture]
        if f"{prefix}embeddings.word_embeddings.weight" not in checkpoint.shapes:
            prefix = ""
        # The states themselves are pooled, so this layer, which most files hold, has no work.
        unused = {f"{prefix}pooler.dense.weight", f"{prefix}pooler.dense.bias"}
        load_tensors(self.tensor_specs(prefix), checkpoint, unused=unused, report_progress=report_progress)
        pack_weights(self, report_progress)


_ROBERTA_HEAD = ("classifier.dense", "classifier.out_proj")
