"""A model that cannot be served: the daemon ends quickly, says why in its last line, and leaves nothing behind."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.end_to_end.byte_tokenizer import write_byte_tokenizer
from tests.end_to_end.server import descendants, start, wait_until_gone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    path = tmp_path / "model"
    LlamaForCausalLM(config).save_pretrained(path)
    write_byte_tokenizer(path)
    return path


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def remove_norm(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("model.norm.weight"))


def add_tensor(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"model.layers.7.mlp.up_proj.weight": torch.zeros(4, 4)}))


def misshape(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def remove_head(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))


CASES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "missing tensor": (remove_norm, ["model.norm.weight", "missing", "model.safetensors"]),
    "extra tensor": (add_tensor, ["model.layers.7.mlp.up_proj.weight"]),
    "misshaped tensor": (misshape, ["model.norm.weight", "31", "32"]),
    "truncated file": (truncate, ["model.safetensors"]),
    "no head and not tied": (remove_head, ["lm_head.weight", "tie_word_embeddings"]),
    "foreign architecture": (
        lambda folder: change_config(folder, architectures=["BambaForCausalLM"], model_type="bamba"),
        ["config.json", "amba"],
    ),
    "broken config": (lambda folder: (folder / "config.json").write_text("{"), ["config.json"]),
    "no config": (lambda folder: (folder / "config.json").unlink(), ["config.json"]),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ["safetensors"]),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), ["tokenizer.json"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_last_line_is_the_cause(folder: Path, tmp_path: Path, name: str) -> None:
    damage, words = CASES[name]
    damage(folder)
    started = time.monotonic()
    server = start(folder, tmp_path, "--kv-cache-memory", "16MiB")
    pids: list[int] = []
    while server.process.poll() is None:
        pids = descendants(server.pid) or pids
        assert time.monotonic() - started < 30
        time.sleep(0.02)
    print(f"{name}: {time.monotonic() - started:.1f} s")
    last_line = server.log().splitlines()[-1]
    assert server.process.returncode in (65, 66), server.log()
    assert all(word in last_line for word in words), last_line
    assert "Traceback" not in server.log()
    wait_until_gone(pids, 5.0)


def test_tensor_parallel_size_that_does_not_fit(default_gguf: Path, tmp_path: Path) -> None:
    server = start(default_gguf, tmp_path, "--tp", "2")
    assert server.process.wait(10) == 2
    last_line = server.log().splitlines()[-1]
    assert "tensor-parallel-size" in last_line
    assert "1, 3" in last_line or "1 or 3" in last_line or "1 and 3" in last_line


def test_a_taken_port(default_gguf: Path, tmp_path: Path, default_server) -> None:  # type: ignore[no-untyped-def]
    port = default_server.url.rpartition(":")[2]
    server = start(default_gguf, tmp_path, "--port", port)
    assert server.process.wait(10) == 75
    assert port in server.log().splitlines()[-1]
