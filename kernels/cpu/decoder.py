"""A whole forward of a decoder as one call: `source/decoder.cpp`. Rank processes, made once a model is loaded."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engined.kernels.cpu.library import AttentionBatch, AttentionShape, CpuKernels, LinearWeight, PackedLinear
from engined.kernels.cpu.memory import map_huge_pages

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_ssize_t


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """What one layer computes with. Norms are [hidden_size] or [head_dim], keys and values the layer's KV cache."""

    input_norm: Tensor
    qkv: tuple[PackedLinear, Tensor | None]
    """A weight and its bias, here and below."""
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_output: tuple[PackedLinear, Tensor | None]
    post_attention_norm: Tensor
    gate_up: tuple[PackedLinear, Tensor | None]
    down: tuple[PackedLinear, Tensor | None]
    keys: Tensor
    values: Tensor


class _Layer(ctypes.Structure):
    """`DecoderLayer` of decoder.cpp."""

    _fields_ = (
        ("input_norm", _POINTER),
        ("qkv", LinearWeight),
        ("query_norm", _POINTER),
        ("key_norm", _POINTER),
        ("attention_output", LinearWeight),
        ("post_attention_norm", _POINTER),
        ("gate_up", LinearWeight),
        ("down", LinearWeight),
        ("keys", _POINTER),
        ("values", _POINTER),
    )


class _Decoder(ctypes.Structure):
    """`Decoder` of decoder.cpp."""

    _fields_ = (
        ("attention", AttentionShape),
        ("hidden_size", _SIZE),
        ("num_layers", _SIZE),
        ("epsilon", ctypes.c_float),
        ("layers", ctypes.POINTER(_Layer)),
        ("final_norm", _POINTER),
    )


class DecoderKernel:
    """The layers of one model, and the memory that a forward works in. Calls must come one at a time."""

    def __init__(
        self,
        kernels: CpuKernels,
        attention: AttentionShape,
        layers: Sequence[LayerTensors],
        final_norm: Tensor,
        epsilon: float,
    ) -> None:
        """All norms have the same `epsilon`."""
        self._tensors = (tuple(layers), final_norm)  # what the structures point to
        self._layers = (_Layer * len(layers))(*map(_pack, layers))
        self._decoder = _Decoder(
            attention, final_norm.shape[0], len(layers), epsilon, self._layers, final_norm.data_ptr()
        )
        self._workspace_bytes, self._forward = kernels.decoder(ctypes.POINTER(_Decoder))
        # It is kept: for a prompt of 1,024 tokens the system would have to provide 2,000 pages anew.
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def forward(self, stream: Tensor, angles: Tensor, batch: AttentionBatch) -> Tensor:
        """Embeddings [num_tokens, hidden_size], which are overwritten, and angles [num_tokens, head_dim] float32 ->
        hidden states [num_tokens, hidden_size] after the final norm. Keys and values of the tokens are cached."""
        assert stream.is_contiguous() and angles.is_contiguous()
        num_bytes = self._workspace_bytes(ctypes.byref(self._decoder), stream.shape[0])
        if num_bytes > len(self._workspace):
            self._workspace = map_huge_pages(num_bytes)
        output = torch.empty_like(stream)
        self._forward(
            ctypes.byref(self._decoder),
            ctypes.byref(batch),
            stream.data_ptr(),
            angles.data_ptr(),
            self._workspace.data_ptr(),
            output.data_ptr(),
        )
        return output


def _pack(layer: LayerTensors) -> _Layer:
    return _Layer(
        input_norm=layer.input_norm.data_ptr(),
        qkv=_weight(layer.qkv),
        query_norm=_address(layer.query_norm),
        key_norm=_address(layer.key_norm),
        attention_output=_weight(layer.attention_output),
        post_attention_norm=layer.post_attention_norm.data_ptr(),
        gate_up=_weight(layer.gate_up),
        down=_weight(layer.down),
        keys=layer.keys.data_ptr(),
        values=layer.values.data_ptr(),
    )


def _weight(linear: tuple[PackedLinear, Tensor | None]) -> LinearWeight:
    packed, bias = linear
    return packed.with_bias(bias)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
