"""What a layer wants from a checkpoint. Layers list their specs; `models.loader` checks them all, then fills them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDestination:
    """Receives a part in blocks of 4 bits: 32 columns with a scale and a minimum, as Q4_1 of GGUF has them."""

    blocks: Tensor
    """[rows, blocks, bytes of a block] uint8"""
    quantize: Callable[[Tensor, Tensor], None]
    """Turns bfloat16 weights [rows, columns] into such blocks, where the checkpoint has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of the checkpoint, and the part of it that this rank holds."""

    name: str
    """Hugging Face name, for example "model.layers.0.mlp.up_proj.weight"."""
    shape: tuple[int, ...]
    """Of the whole tensor in the checkpoint."""
    slices: tuple[slice, ...]
    """The part that this rank needs, one slice a dimension, step 1."""
    destination: Tensor | BlockDestination
    """Receives the part; the same shape, any float dtype. A view into the weight of a layer."""

    @property
    def part_shape(self) -> tuple[int, ...]:
        """Of the part that this rank needs."""
        return tuple(part.stop - part.start for part in self.slices)


def whole(name: str, destination: Tensor) -> TensorSpec:
    """The spec of a tensor that every rank holds in full."""
    shape = tuple(destination.shape)
    return TensorSpec(name=name, shape=shape, slices=tuple(slice(0, size) for size in shape), destination=destination)
