"""Headers of safetensors files: single, sharded and damaged."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engined.checkpoint.safetensors_file import SafetensorsFolder, read_header
from engined.errors import CheckpointError, ModelNotFoundError


def content(header: Any, num_bytes: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(num_bytes)


ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def test_reads_shapes_without_reading_data(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content({"a": ENTRY, "__metadata__": {"format": "pt"}}, 24))
    folder = SafetensorsFolder.open(tmp_path)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in folder.tensors.items()} == {"a": ((2, 3), "F32")}
    assert (folder.num_parameters, folder.main_dtype) == (6, "float32")


DAMAGED = {
    "claims": b"\xff" * 8 + bytes(100),
    "claims 0 bytes": b"",
    "not valid JSON": content(b"{,}"),
    "not a JSON object": content([1]),
    "ends at byte 24 of 20": content({"a": ENTRY}, 20),
    "has 20 bytes": content({"a": ENTRY | {"data_offsets": [4, 24]}}, 24),
    "entry of tensor 'a' is malformed": content({"a": {"dtype": "F32"}}),
    "tensor 'b' is malformed": content({"b": ENTRY | {"shape": [-1]}}, 24),
    "tensor 'c' is malformed": content({"c": 7}, 24),
    "tensor 'd' is malformed": content({"d": ENTRY | {"data_offsets": [0]}}, 24),
}


@pytest.mark.parametrize("problem", DAMAGED)
def test_damage_is_named(problem: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(DAMAGED[problem])
    with pytest.raises(CheckpointError) as raised:
        SafetensorsFolder.open(tmp_path)
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)


def write_shards(folder: Path, weight_map: Any) -> None:
    (folder / "one.safetensors").write_bytes(content({"a": ENTRY}, 24))
    (folder / "two.safetensors").write_bytes(content({"b": ENTRY}, 24))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    folder = SafetensorsFolder.open(tmp_path)
    assert {name: tensor.file.name for name, tensor in folder.tensors.items()} == {
        "a": "one.safetensors",
        "b": "two.safetensors",
    }


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "three.safetensors"}, r"three\.safetensors: missing"),
        ({"a": "two.safetensors"}, r"two\.safetensors: tensor 'a' is missing"),
        ({"a": "../one.safetensors"}, "not a plain file name"),
        ({"a": 1}, "'weight_map' must map"),
        (None, "'weight_map' must map"),
    ],
)
def test_bad_index(weight_map: Any, message: str, tmp_path: Path) -> None:
    write_shards(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFolder.open(tmp_path)


def test_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="the folder holds no weights"):
        SafetensorsFolder.open(tmp_path)
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"holds m\.gguf; to serve a \.gguf file, name the file itself"):
        SafetensorsFolder.open(tmp_path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_never_escapes(data: st.DataObject, tmp_path: Path) -> None:
    damaged = bytearray(content({"a": ENTRY, "b": ENTRY | {"data_offsets": [24, 48]}}, 48))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=6))
        damaged[position : position + len(patch)] = patch
    path = tmp_path / "x.safetensors"
    path.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        tensors = read_header(path)
    except CheckpointError as error:
        assert str(path) in str(error)
        return
    assert all(isinstance(size, int) for tensor in tensors.values() for size in tensor.shape)
