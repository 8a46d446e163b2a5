"""Weights of linear layers in 8 or 4 bits, for our CPU kernels. Rank processes.

Inputs are rounded to 8 bits as they come, so that products are sums of integers; inputs and results stay bfloat16.
A row of the result has the same bits whatever the number of rows. All linear layers of SmolLM2-135M, on a core with
AMX, take for 1, 32 and 128 rows 0.51, 0.61 and 0.72 of the time of bfloat16 in int8, and 0.41, 0.65 and 1.12 in int4;
with AVX512-VNNI alone 0.58 and 0.33 for 1 and 32 rows in int8, 0.55 and 0.32 in int4.
"""

import torch
from torch import nn

from engined.kernels.cpu.library import INT4_BLOCK_BYTES, CpuKernels, int4_blocks
from engined.kernels.cpu.memory import WeightMemory
from engined.layers.dense_weight import DenseKernelWeightMethod, KernelWeightMethod
from engined.layers.tensor_spec import BlockDestination, TensorSpec
from engined.layers.weight_method import LinearPart


class Int8WeightMethod(DenseKernelWeightMethod):
    """All inputs of an output share a scale: weights and inputs are rotated first, so that few large ones among them do
    not take the others' precision. A weight of any kind is loaded as bfloat16, and then rounded."""

    def finish_load(self) -> None:
        self._packed = self._kernels.pack_int8(self.weight, self._memory, self._is_gated)
        del self.weight


class Int4WeightMethod(KernelWeightMethod):
    """32 inputs of an output share a scale and a minimum.

    What a checkpoint has in such blocks is taken as it is; all else is rounded, one tensor at a time, as it is read.
    """

    def __init__(
        self, shape: tuple[int, int], kernels: CpuKernels, memory: WeightMemory, *, is_gated: bool = False
    ) -> None:
        """`shape` is (out_features, in_features)."""
        super().__init__(kernels, memory, is_gated=is_gated)
        self._in_features = shape[1]
        self.blocks = nn.Parameter(
            torch.empty(shape[0], int4_blocks(shape[1]), INT4_BLOCK_BYTES, dtype=torch.uint8), requires_grad=False
        )

    def tensor_specs(self, part: LinearPart) -> list[TensorSpec]:
        end_row = part.first_row + part.rows.stop - part.rows.start
        destination = BlockDestination(
            blocks=self.blocks[part.first_row : end_row], quantize=self._kernels.quantize_blocks
        )
        return [
            TensorSpec(
                name=f"{part.name}.weight",
                shape=part.shape,
                slices=(part.rows, part.columns),
                destination=destination,
            )
        ]

    def finish_load(self) -> None:
        self._packed = self._kernels.pack_int4(self.blocks, self._in_features, self._memory, self._is_gated)
        del self.blocks
