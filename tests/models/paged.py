"""Drives a model over a paged KV cache as the model runner does, with blocks in random order."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engined.attention.backend import AttentionSpec
from engined.attention.context import forward_context
from engined.attention.metadata import AttentionMetadata
from engined.attention.selector import select_backend
from engined.checkpoint.load import load_model_info
from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Quantization
from engined.kernels.cpu.library import CpuKernels
from engined.layers.context import LayerContext
from engined.layers.tensor_parallel import TensorParallelGroup
from engined.models.loader import open_checkpoint
from engined.models.registry import build_model

BLOCK_SIZE = 4
"""Small, so that sequences cross many borders; the attention kernel needs at least a vector."""
KERNEL_BLOCK_SIZE = 16
NUM_BLOCKS = 128


class PagedModel:
    """A loaded model, its caches, and the tokens that each sequence has computed so far."""

    def __init__(
        self,
        info: ModelInfo,
        tp: TensorParallelGroup | None = None,
        dtype: torch.dtype = torch.float32,
        kv_cache_dtype: torch.dtype = torch.float32,
        kernels: CpuKernels | None = None,
        is_fused: bool = True,
        quantization: Quantization = "none",
    ) -> None:
        """Not fused, the layers are called one by one, even where they could run as one call."""
        self.info = info
        self.block_size = BLOCK_SIZE if kernels is None else KERNEL_BLOCK_SIZE
        tp = tp or TensorParallelGroup()
        device = torch.device("cpu")
        context = LayerContext(dtype=dtype, device=device, tp=tp, kernels=kernels, quantization=quantization)
        self.model = build_model(info, context)
        self.model.load(open_checkpoint(info))
        backend = select_backend(
            AttentionSpec(
                device=device,
                dtype=dtype,
                kv_cache_dtype=kv_cache_dtype,
                num_heads=info.num_attention_heads // tp.size,
                num_kv_heads=info.num_kv_heads // tp.size,
                head_dim=info.head_dim,
                block_size=self.block_size,
                sliding_window=info.sliding_window,
            ),
            kernels,
        )
        if is_fused:
            self.model.bind(backend, NUM_BLOCKS)
        else:
            for layer in self.model.attention_layers():
                layer.bind(backend, backend.allocate_kv_cache(NUM_BLOCKS))
        self._free_blocks = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1)).tolist()
        self._blocks: list[list[int]] = []
        self._computed: list[int] = []

    @classmethod
    def open(cls, path: Path, **options: Any) -> "PagedModel":
        return cls(load_model_info(path), **options)

    def add_sequence(self) -> int:
        """A new, empty sequence."""
        self._blocks.append([])
        self._computed.append(0)
        return len(self._blocks) - 1

    def step(self, new_tokens: dict[int, Sequence[int]]) -> Tensor | None:
        """Compute the next tokens of some sequences; logits of all of them, sequence by sequence, [num_tokens, vocab].

        Sequences with a single token must come first.
        """
        seq_lens, slots, positions = [], [], []
        size = self.block_size
        for sequence, tokens in new_tokens.items():
            start, end = self._computed[sequence], self._computed[sequence] + len(tokens)
            blocks = self._blocks[sequence]
            while len(blocks) * size < end:
                blocks.append(self._free_blocks.pop())
            seq_lens.append(end)
            positions += range(start, end)
            slots += [blocks[i // size] * size + i % size for i in range(start, end)]
            self._computed[sequence] = end
        lengths = [len(tokens) for tokens in new_tokens.values()]
        max_blocks = max(len(self._blocks[sequence]) for sequence in new_tokens)
        table = [self._blocks[sequence] + [0] * (max_blocks - len(self._blocks[sequence])) for sequence in new_tokens]
        metadata = AttentionMetadata(
            query_start_loc=torch.tensor([0, *lengths]).cumsum(0),
            seq_lens=torch.tensor(seq_lens),
            slot_mapping=torch.tensor(slots),
            block_table=torch.tensor(table),
            num_decodes=lengths.count(1),
            max_seq_len=max(seq_lens),
        )
        input_ids = torch.tensor([token for tokens in new_tokens.values() for token in tokens])
        with torch.inference_mode(), forward_context(metadata):
            hidden = self.model(input_ids, torch.tensor(positions))
            logits = self.model.compute_logits(hidden)
        return None if logits is None else logits.float()

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits [num_tokens, vocab] of a sequence computed at once."""
        logits = self.step({self.add_sequence(): tokens})
        assert logits is not None
        return logits
