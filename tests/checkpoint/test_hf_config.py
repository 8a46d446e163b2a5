"""`ModelInfo` of Hugging Face folders: old and new spellings, the union of EOS ids, and what is refused."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from engined.checkpoint.load import load_model_info
from engined.checkpoint.model_info import ModelInfo, RopeScaling
from engined.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """`tensors`: name -> (dtype, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, num_bytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def write_folder(folder: Path, files: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A folder with a changed config.json (None removes a key), more JSON files, and a tensor of 6 parameters."""
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not ...}
    for name, content in {"config.json": config, **(files or {})}.items():
        (folder / name).write_text(json.dumps(content))
    write_safetensors(folder / "model.safetensors", {"x": ("BF16", [2, 3], 12)})
    return folder


def load(folder: Path, files: dict[str, Any] | None = None, **changes: Any) -> ModelInfo:
    return load_model_info(write_folder(folder, files, **changes))


def test_all_fields(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    assert load(folder) == ModelInfo(
        path=str(folder),
        name="tiny-llama",
        checkpoint_format="safetensors",
        architecture="llama",
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_attention_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position=64,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        checkpoint_dtype="bfloat16",
        num_parameters=6,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_name_of_a_hub_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--some-model" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    assert load(folder).name == "org/some-model"


def test_eos_is_the_union_of_all_files(tmp_path: Path) -> None:
    files = {
        "generation_config.json": {"eos_token_id": [5, 2], "temperature": 0.6, "top_p": 0.9, "do_sample": True},
        "tokenizer_config.json": {"eos_token": {"content": "<end>"}},
        "tokenizer.json": {"added_tokens": [{"id": 8, "content": "<pad>"}, {"id": 9, "content": "<end>"}]},
    }
    info = load(tmp_path, files)
    assert info.eos_token_ids == (2, 5, 9)
    assert info.generation_defaults == {"temperature": 0.6, "top_p": 0.9}


def test_eos_of_the_tokenizer_from_its_vocabulary(tmp_path: Path) -> None:
    files = {"tokenizer_config.json": {"eos_token": "</s>"}, "tokenizer.json": {"model": {"vocab": {"</s>": 7}}}}
    assert load(tmp_path, files, eos_token_id=None).eos_token_ids == (7,)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        (
            {"rope_theta": 2e4, "rope_scaling": {"type": "linear", "factor": 2}},
            2e4,
            RopeScaling(kind="linear", factor=2),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            5e5,
            RopeScaling(kind="llama3", factor=8.0),
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            5e5,
            RopeScaling(kind="llama3", factor=8.0),
        ),
    ],
)
def test_rotary_spellings(changes: dict[str, Any], theta: float, scaling: RopeScaling | None, tmp_path: Path) -> None:
    info = load(tmp_path, **changes)
    assert (info.rope_theta, info.rope_scaling) == (theta, scaling)


QWEN2 = {"architectures": ["Qwen2ForCausalLM"]}


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"architectures": ["MistralForCausalLM"]}, 4096),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, None),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 7}, 7),
        ({**QWEN2, "sliding_window": 7, "use_sliding_window": False}, None),
        ({**QWEN2, "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 2}, None),
        ({**QWEN2, "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}, 7),
        ({**QWEN2, "sliding_window": 7, "layer_types": ["full_attention"] * 2}, None),
        ({**QWEN2, "sliding_window": 7, "layer_types": ["sliding_attention"] * 2}, 7),
    ],
)
def test_sliding_window(changes: dict[str, Any], window: int | None, tmp_path: Path) -> None:
    assert load(tmp_path, **changes).sliding_window == window


def test_biases_by_family(tmp_path: Path) -> None:
    def biases(**changes: Any) -> tuple[bool, bool, bool]:
        info = load(tmp_path, **changes)
        return info.attention_bias, info.attention_output_bias, info.mlp_bias

    assert biases() == (False, False, False)
    assert biases(attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases(**QWEN2) == (True, False, False)
    assert biases(architectures=["Qwen3ForCausalLM"], attention_bias=True) == (True, True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Gemma2ForCausalLM"]}, "architecture 'Gemma2ForCausalLM' is not supported"),
        ({"architectures": ...}, "'architectures' is missing"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope type 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4}}, "rope type 'dynamic' is not supported"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({**QWEN2, "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1}, "full_attention and sl"),
        ({**QWEN2, "layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention and full_attention"),
    ],
)
def test_unsupported(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as raised:
        load(tmp_path, **changes)
    assert "config.json" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "'hidden_size' is missing"),
        ({"hidden_size": "big"}, "'hidden_size' must be a positive integer, but is 'big'"),
        ({"num_hidden_layers": True}, "'num_hidden_layers' must be a positive integer"),
        ({"num_attention_heads": 64, "num_key_value_heads": 64}, "'head_dim' must be a positive integer, but is 0"),
        ({"rms_norm_eps": -1}, "'rms_norm_eps' must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' must be true or false"),
        ({"rope_scaling": 7}, "'rope_scaling' must be an object"),
        ({"eos_token_id": [1, "x"]}, "'eos_token_id' must be a token id"),
    ],
)
def test_damaged(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        load(tmp_path, **changes)
    assert "config.json" in str(raised.value)


def test_bad_or_missing_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: missing"):
        load_model_info(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not valid JSON"):
        load_model_info(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="must hold a JSON object"):
        load_model_info(tmp_path)


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('executed')")
    assert load(tmp_path, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"}).architecture == "llama"


def test_weights_that_are_not_floats(tmp_path: Path) -> None:
    write_folder(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {"x": ("F8_E4M3", [2, 3], 6)})
    with pytest.raises(UnsupportedModelError, match="tensor 'x' has dtype F8_E4M3"):
        load_model_info(tmp_path)


def test_only_pickles_present(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError) as raised:
        load_model_info(tmp_path)
    for part in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pickles"):
        assert part in str(raised.value)
