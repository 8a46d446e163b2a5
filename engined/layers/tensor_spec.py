"""What a layer wants from a checkpoint. Layers list their specs; `models.loader` checks them all, then fills them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of the checkpoint, and the part of it that this rank holds."""

    name: str
    """Hugging Face name, for example "model.layers.0.mlp.up_proj.weight"."""
    shape: tuple[int, ...]
    """Of the whole tensor in the checkpoint."""
    slices: tuple[slice, ...]
    """The part that this rank needs, one slice a dimension, step 1."""
    destination: Tensor
    """Receives the part; the same shape, any float dtype. A view into the weight of a layer."""


def whole(name: str, destination: Tensor) -> TensorSpec:
    """The spec of a tensor that every rank holds in full."""
    shape = tuple(destination.shape)
    return TensorSpec(name=name, shape=shape, slices=tuple(slice(0, size) for size in shape), destination=destination)
