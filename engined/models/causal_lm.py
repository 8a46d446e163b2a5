"""A decoder-only language model: embedding, layers of some family, final norm, output head.

The model runner calls `forward` inside a forward context, then `compute_logits` on the rows that need logits. A pooling
runner uses the hidden states themselves, so its model has no head. The model knows nothing of requests.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from engined.attention.backend import AttentionBackend
from engined.attention.layer import Attention
from engined.checkpoint.model_info import ModelInfo
from engined.kernels.cpu.library import CpuKernels
from engined.layers.context import LayerContext
from engined.layers.norm import RMSNorm
from engined.layers.rotary import RotaryEmbedding
from engined.layers.tensor_spec import TensorSpec
from engined.layers.vocabulary import ParallelLMHead, VocabParallelEmbedding
from engined.models.blocks import DecoderLayer
from engined.models.checkpoint import Checkpoint
from engined.models.fused import FusedDecoder, fuse
from engined.models.loader import load_tensors, pack_weights
from engined.process.progress import ProgressReporter, report_nothing


class CausalLM(nn.Module):
    """One rank's share of a model. A family differs from another in the layers that it passes in."""

    def __init__(self, info: ModelInfo, context: LayerContext, layers: Sequence[DecoderLayer]) -> None:
        super().__init__()
        self.info = info
        self._context = context
        self._fused: FusedDecoder | None = None
        self.embed_tokens = VocabParallelEmbedding(info.vocab_size, info.hidden_size, context)
        self.rotary = RotaryEmbedding(info.head_dim, info.rope_theta, info.rope_scaling, context)
        self.layers = nn.ModuleList(layers)
        self._decoder_layers = tuple(layers)
        self.norm = RMSNorm(info.hidden_size, info.rms_norm_eps, context)
        tied_to = self.embed_tokens if info.tie_word_embeddings else None
        self.lm_head = (
            ParallelLMHead(info.vocab_size, info.hidden_size, context, tied_to) if info.runner == "generate" else None
        )

    @property
    def is_fused(self) -> bool:
        """Whether all layers run as one call of our kernels."""
        return self._fused is not None

    @property
    def kernels(self) -> CpuKernels | None:
        """Those that the model computes with, if there are any."""
        return self._context.kernels

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """int64 ids and positions [num_tokens] -> hidden states [num_tokens, hidden_size], after the final norm"""
        stream = self.embed_tokens.forward(input_ids)
        rotation = self.rotary.forward(positions)
        if self._fused is not None:
            return self._fused.forward(stream, rotation)
        update: Tensor | None = None
        for layer in self._decoder_layers:
            update = layer.forward(stream, update, rotation)
        return self.norm.add_and_norm(stream, update)

    def compute_logits(self, hidden: Tensor) -> Tensor | None:
        """hidden [rows, hidden_size] -> logits [rows, vocab_size], of the model's type, on rank 0.

        The other ranks must call it too; they get None.
        """
        assert self.lm_head is not None, "a pooling model has no logits"
        return self.lm_head.forward(hidden)

    def bind(self, backend: AttentionBackend, num_blocks: int) -> None:
        """Give the loaded layers their attention backend and a KV cache each; from then on they may run as one call."""
        layers = self.attention_layers()
        for layer, kv_cache in zip(layers, backend.allocate_kv_caches(len(layers), num_blocks), strict=True):
            layer.bind(backend, kv_cache)
        self._fused = fuse(self._decoder_layers, self.norm, self._context)

    def attention_layers(self) -> list[Attention]:
        """The attention of each layer, in order; each needs a backend and a KV cache bound."""
        return [module for module in self.modules() if isinstance(module, Attention)]

    def zero_kv_blocks(self, block_ids: list[int]) -> None:
        """Overwrite these blocks in the KV cache of every layer."""
        if block_ids:
            for layer in self.attention_layers():
                layer.kv_cache.zero_blocks(block_ids)

    def tensor_specs(self, prefix: str = "model.") -> list[TensorSpec]:
        """Everything that this rank loads; `prefix` stands before all names but the head's."""
        specs = self.embed_tokens.tensor_specs(f"{prefix}embed_tokens") + self.norm.tensor_specs(f"{prefix}norm")
        for i, layer in enumerate(self._decoder_layers):
            specs += layer.tensor_specs(f"{prefix}layers.{i}")
        return specs if self.lm_head is None else specs + self.lm_head.tensor_specs("lm_head")

    def load(self, checkpoint: Checkpoint, report_progress: ProgressReporter = report_nothing) -> None:
        """Fill all weights. Raises CheckpointError, before anything is read, if the tensors do not fit the model."""
        # A model that was saved without its head has no prefix.
        prefix = "" if "embed_tokens.weight" in checkpoint.shapes else "model."
        load_tensors(self.tensor_specs(prefix), checkpoint, report_progress=report_progress)
        pack_weights(self, report_progress)
