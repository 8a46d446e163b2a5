"""Dense weights of linear layers: our kernels where they are built, else oneDNN where it can, else plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engined.kernels.cpu.library import DTYPES, CpuKernels, PackedLinear
from engined.kernels.cpu.memory import WeightMemory
from engined.layers import emulated_bfloat16
from engined.layers.tensor_spec import TensorSpec
from engined.layers.weight_method import LinearPart, WeightMethod

_EXACT_ROWS = 16
"""Up to so many rows nothing is added: they are one tile of the processor, and most decoding steps have no more."""


class PlainWeightMethod(WeightMethod):
    """A dense weight, multiplied by torch. Inputs have the type of the weight."""

    def __init__(self, weight: nn.Parameter, *, is_gated: bool = False) -> None:
        """`weight` [out_features, in_features] is kept, not copied; a tied head passes the embedding's."""
        super().__init__()
        self.weight = weight
        self._is_gated = is_gated
        self._multiply = emulated_bfloat16.multiply if emulated_bfloat16.is_emulated(weight) else F.linear

    def tensor_specs(self, part: LinearPart) -> list[TensorSpec]:
        return dense_specs(self.weight, part)

    def forward(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        return self._gate(self._multiply(inputs, self.weight, bias))

    def _gate(self, product: Tensor) -> Tensor:
        if not self._is_gated:
            return product
        gate, up = product.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


class OneDnnWeightMethod(PlainWeightMethod):
    """A dense weight in the blocked layout of oneDNN, which is made once, after loading; the plain one is let go.

    A row of its result has the same bits whatever the number of rows, which MKL's products have not: so a request gets
    the same logits alone and in a batch (seen with AVX2). It is faster too: all layers of SmolLM2-135M, in float32 on
    two Zen 1 cores, take 155 ms for 32 rows and 41 for one, with `F.linear` 297 and 50.
    """

    def __init__(self, weight: nn.Parameter, *, is_gated: bool = False) -> None:
        super().__init__(weight, is_gated=is_gated)
        self._packed: Tensor | None = None

    @staticmethod
    def supports(dtype: torch.dtype, device: torch.device) -> bool:
        """Whether this machine's oneDNN multiplies weights of `dtype` on `device`."""
        if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return False
        return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def finish_load(self) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        del self.weight

    def forward(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        assert self._packed is not None, "finish_load packs the weight"
        num_rows = inputs.shape[0]
        num_missing = padded_rows(num_rows) - num_rows
        if num_missing:
            inputs = F.pad(inputs, (0, 0, 0, num_missing))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._packed, bias, "none", [], "")
        return self._gate(product[:num_rows])


def padded_rows(num_rows: int) -> int:
    """The number of rows that oneDNN gets to multiply `num_rows`: one of eight in each power of two.

    oneDNN compiles code for each number of rows and never lets go of it: for each shape of a weight that is more than a
    GB, once it has met every number up to 2048. Of these there are 55, which take 40 MB (seen with AVX512 and AMX).
    """
    if num_rows <= _EXACT_ROWS:
        return num_rows
    step = max(_EXACT_ROWS, 1 << ((num_rows - 1).bit_length() - 4))
    return -(-num_rows // step) * step


class KernelWeightMethod(WeightMethod):
    """A weight, of whatever kind, packed for our own CPU kernels. `finish_load` packs it."""

    def __init__(self, kernels: CpuKernels, memory: WeightMemory, *, is_gated: bool = False) -> None:
        super().__init__()
        self._kernels = kernels
        self._memory = memory
        self._is_gated = is_gated
        self._packed: PackedLinear | None = None

    @property
    def packed(self) -> PackedLinear:
        """What the kernels read, once the weight is loaded."""
        assert self._packed is not None, "finish_load packs the weight"
        return self._packed

    def forward(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        return self._kernels.linear(inputs, self.packed, bias)


class DenseKernelWeightMethod(KernelWeightMethod):
    """A dense weight; the plain one is let go after loading.

    Each output is one chain of sums in the order of the inputs, so a row of the result has the same bits whatever the
    number of rows, on every machine. All layers of SmolLM2-135M on two Zen 1 cores take, for one row and for 32, 21 and
    129 ms in float32 (oneDNN 41 and 155) and 12 and 134 ms in bfloat16.
    """

    def __init__(
        self, weight: nn.Parameter, kernels: CpuKernels, memory: WeightMemory, *, is_gated: bool = False
    ) -> None:
        """`weight` [out_features, in_features] is kept until it is packed; a tied head passes the embedding's."""
        super().__init__(kernels, memory, is_gated=is_gated)
        self.weight = weight

    @staticmethod
    def supports(dtype: torch.dtype, device: torch.device) -> bool:
        """Whether the kernels multiply by such weights."""
        return device.type == "cpu" and dtype in DTYPES

    def tensor_specs(self, part: LinearPart) -> list[TensorSpec]:
        return dense_specs(self.weight, part)

    def finish_load(self) -> None:
        self._packed = self._kernels.pack_linear(self.weight, self._memory, self._is_gated)
        del self.weight


def dense_specs(weight: Tensor, part: LinearPart) -> list[TensorSpec]:
    """The tensor that holds `part`, and its rows in `weight` [out_features, in_features]."""
    end_row = part.first_row + part.rows.stop - part.rows.start
    return [
        TensorSpec(
            name=f"{part.name}.weight",
            shape=part.shape,
            slices=(part.rows, part.columns),
            destination=weight[part.first_row : end_row],
        )
    ]
