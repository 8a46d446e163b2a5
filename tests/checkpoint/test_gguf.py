"""The GGUF header reader: what it reads, and that no file can make it do anything but raise CheckpointError."""

import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engined.checkpoint.gguf import GgufFile
from engined.errors import CheckpointError, ModelNotFoundError
from tests.checkpoint.gguf_files import (
    MODEL_METADATA,
    STRING,
    entry,
    gguf_bytes,
    header,
    string,
    tensor_row,
    value,
    write,
)

DATA = struct.pack("<6f", *range(6))
VALID = gguf_bytes(MODEL_METADATA, {"x": ((2, 3), "F32", DATA), "q": ((2, 32), "Q8_0", bytes(68))})


def parse(content: bytes) -> GgufFile:
    return GgufFile(Path("model.gguf"), memoryview(content))


def test_reads_metadata_and_tensors(tmp_path: Path) -> None:
    file = GgufFile.open(write(tmp_path / "m.gguf", VALID))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == 5
    assert list(tokens) == MODEL_METADATA["tokenizer.ggml.tokens"]
    assert tokens[2] == "<|endoftext|>"
    assert tokens[1:3] == ["b", "<|endoftext|>"]
    assert list(file.metadata["tokenizer.ggml.token_type"]) == [1, 1, 3, 3, 1]
    tensor = file.tensors["x"]
    assert (tensor.shape, tensor.type_name, tensor.num_bytes) == ((2, 3), "F32", 24)
    assert bytes(file.raw("x")) == DATA
    assert file.tensors["q"].num_bytes == 68


def test_version_2_and_every_scalar_type() -> None:
    scalars = [(0, "B", 255), (1, "b", -1), (2, "H", 65535), (3, "h", -2), (4, "I", 7), (5, "i", -7), (6, "f", 0.5)]
    scalars += [(7, "?", True), (10, "Q", 2**63), (11, "q", -(2**62)), (12, "d", 0.1)]
    body = b"".join(string(f"k{kind}") + struct.pack(f"<I{code}", kind, number) for kind, code, number in scalars)
    file = parse(header(0, len(scalars), version=2) + body)
    assert [file.metadata[f"k{kind}"] for kind, _, _ in scalars] == [number for _, _, number in scalars]


def test_default_model_opens_fast(default_gguf: Path) -> None:
    """Reading the header of the `gguf` package takes seconds; the frontend and the supervisor cannot wait for it."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        file = GgufFile.open(default_gguf)
        best = min(best, time.perf_counter() - started)
    assert best < 0.5
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert file.tensors["token_embd.weight"].shape == (49152, 576)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        GgufFile.open(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match=r"empty\.gguf: the file is empty"):
        GgufFile.open(write(tmp_path / "empty.gguf", b""))
    with pytest.raises(CheckpointError, match="cannot be read"):
        GgufFile.open(tmp_path)


HUGE = 2**62
DAMAGED = {
    "not a GGUF file": header(0, 0, magic=b"GGML"),
    "GGUF version 1 is not supported": header(0, 0, version=1),
    "GGUF version 50331648 is not supported": header(0, 0, version=0x03000000),
    f"a table of {HUGE} metadata entries": header(0, HUGE) + bytes(100),
    f"a table of {HUGE} tensors": header(HUGE, 0) + bytes(100),
    "occurs twice": header(0, 2) + entry("a", 1) + entry("a", 2),
    "has unknown type 99": header(0, 1) + string("a") + struct.pack("<II", 99, 0),
    "is an array of arrays": header(0, 1) + string("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(99),
    "is an array of unknown type 77": header(0, 1) + string("a") + struct.pack("<IIQ", 9, 77, 1) + bytes(99),
    f"an array of {HUGE} elements": header(0, 1) + string("a") + struct.pack("<IIQ", 9, 5, HUGE) + bytes(99),
    f"needs {HUGE} bytes": header(0, 1) + string("a") + struct.pack("<IQ", STRING, HUGE) + bytes(99),
    "at most 65535 are allowed": header(0, 1) + struct.pack("<Q", 70000) + bytes(80000),
    "is not valid UTF-8": header(0, 1) + string(b"\xff\xfe") + value(1) + bytes(9),
    "reach beyond the end": header(0, 1) + string("a") + struct.pack("<IIQQ", 9, STRING, 1, HUGE) + bytes(9),
    "5 dimensions": header(1, 0) + tensor_row("x", (1,) * 5, 0, 0) + bytes(99),
    "has unknown type 200": header(1, 0) + tensor_row("x", (1,), 200, 0) + bytes(99),
    "packs 32 at a time": header(1, 0) + tensor_row("x", (2, 33), 8, 0) + bytes(999),
    "not a multiple of 32": header(1, 0) + tensor_row("x", (1,), 0, 4) + bytes(99),
    "is the download complete": header(1, 0) + tensor_row("x", (1000, 1000), 0, 0) + bytes(99),
    "tensor 'x' ends at byte": header(1, 0) + tensor_row("x", (HUGE, HUGE), 0, HUGE) + bytes(99),
    "tensor 'x' occurs twice": header(2, 0) + tensor_row("x", (1,), 0, 0) * 2 + bytes(99),
    "general.alignment is 3": header(0, 1) + entry("general.alignment", 3),
    "general.alignment is 0": header(0, 1) + entry("general.alignment", 0),
    "general.alignment is 'x'": header(0, 1) + entry("general.alignment", "x"),
}


@pytest.mark.parametrize("problem", DAMAGED)
def test_damage_is_named(problem: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.gguf", DAMAGED[problem])
    with pytest.raises(CheckpointError) as raised:
        GgufFile.open(path)
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)


def test_damage_in_an_array_is_found_on_access() -> None:
    body = string("a") + struct.pack("<IIQ", 9, STRING, 1) + string(b"\xff")
    file = parse(header(0, 1) + body)
    with pytest.raises(CheckpointError, match="not valid UTF-8"):
        list(file.metadata["a"])


def test_every_truncation_is_refused() -> None:
    for length in range(len(VALID) - 64):
        with pytest.raises(CheckpointError):
            parse(VALID[:length])


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_random_damage_never_escapes(data: st.DataObject) -> None:
    """Any bytes overwritten anywhere: the file is refused, or read within its own size; memory stays small."""
    content = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        patch = data.draw(
            st.binary(min_size=1, max_size=8) | st.integers(0, 2**64 - 1).map(lambda n: n.to_bytes(8, "little"))
        )
        content[position : position + len(patch)] = patch
    tracemalloc.start()
    try:
        file = parse(bytes(content))
        for entry_value in file.metadata.values():
            if not isinstance(entry_value, str | int | float):
                list(entry_value)
        for name, tensor in file.tensors.items():
            assert len(file.raw(name)) == tensor.num_bytes
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_random_bytes_after_a_header(body: bytes, num_tensors: int, num_entries: int) -> None:
    try:
        parse(header(num_tensors, num_entries) + body)
    except CheckpointError:
        return
    assert num_tensors == num_entries == 0 or body
