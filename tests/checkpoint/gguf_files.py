"""Writes small GGUF files byte by byte, valid ones and damaged ones."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STRING, ARRAY = 8, 9
TYPE_IDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "BF16": 30}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(content: Any) -> bytes:
    """A metadata value with its type in front."""
    if isinstance(content, bool):
        return struct.pack("<I?", 7, content)
    if isinstance(content, int):
        return struct.pack("<II", 4, content)
    if isinstance(content, float):
        return struct.pack("<If", 6, content)
    if isinstance(content, str):
        return struct.pack("<I", STRING) + string(content)
    if content and isinstance(content[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(content)) + b"".join(map(string, content))
    return struct.pack(f"<IIQ{len(content)}i", ARRAY, 5, len(content), *content)


def entry(key: str, content: Any) -> bytes:
    return string(key) + value(content)


def tensor_row(name: str, shape: Sequence[int], type_id: int, offset: int) -> bytes:
    """One row of the tensor table; `shape` rows first."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), type_id, offset)


def header(num_tensors: int, num_entries: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_entries)


def gguf_bytes(
    metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], str, bytes]] | None = None, alignment: int = 32
) -> bytes:
    """A whole file. `tensors`: name -> (shape, type name, data)."""
    tensors = tensors or {}
    rows, data = b"", b""
    for name, (shape, type_name, content) in tensors.items():
        rows += tensor_row(name, shape, TYPE_IDS[type_name], len(data))
        data += content + b"\0" * (-len(content) % alignment)
    start = header(len(tensors), len(metadata)) + b"".join(entry(*item) for item in metadata.items()) + rows
    return start + b"\0" * (-len(start) % alignment) + data


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


MODEL_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "<|endoftext|>", "<|im_end|>", "<|eot_id|>"],
    "tokenizer.ggml.token_type": [1, 1, 3, 3, 1],
    "tokenizer.ggml.eos_token_id": 2,
}
