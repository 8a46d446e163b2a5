"""`ModelInfo` of GGUF files: every field, the union of end tokens, and what is refused."""

import struct
from pathlib import Path
from typing import Any

import pytest

from engined.checkpoint.load import load_model_info
from engined.checkpoint.model_info import ModelInfo, RopeScaling
from engined.checkpoint.rope import frequency_factors
from engined.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from tests.checkpoint.gguf_files import MODEL_METADATA, gguf_bytes, write

NORM = ((32,), "F32", bytes(128))


def load(folder: Path, changes: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> ModelInfo:
    """The info of a file with some metadata changed; None removes a key."""
    metadata = {key: value for key, value in {**MODEL_METADATA, **(changes or {})}.items() if value is not None}
    return load_model_info(
        write(folder / "small.Q8_0.gguf", gguf_bytes(metadata, {"output_norm.weight": NORM} | (tensors or {})))
    )


def test_all_fields(tmp_path: Path) -> None:
    assert load(tmp_path, {"tokenizer.ggml.bos_token_id": 1}) == ModelInfo(
        path=str(tmp_path / "small.Q8_0.gguf"),
        name="small.Q8_0",
        checkpoint_format="gguf",
        architecture="llama",
        vocab_size=5,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_attention_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position=64,
        rms_norm_eps=struct.unpack("f", struct.pack("f", 1e-5))[0],
        rope_theta=10000.0,
        tie_word_embeddings=True,
        checkpoint_dtype="float32",
        num_parameters=32,
        bos_token_id=1,
        eos_token_ids=(2, 3),
    )


def test_end_tokens_are_the_union_of_declared_and_known_ones(tmp_path: Path) -> None:
    """`<|eot_id|>` is no control token in this vocabulary, so it ends nothing unless it is declared."""
    assert load(tmp_path, {"tokenizer.ggml.eos_token_id": 0}).eos_token_ids == (0, 2, 3)
    assert load(tmp_path, {"tokenizer.ggml.eos_token_id": None}).eos_token_ids == (2, 3)
    assert load(tmp_path, {"tokenizer.ggml.eot_token_id": 4}).eos_token_ids == (2, 4, 3)
    assert load(tmp_path, {"tokenizer.ggml.eos_token_id": 99}).eos_token_ids == (2, 3)


def test_architectures_and_shapes(tmp_path: Path) -> None:
    changes = {key.replace("llama.", "qwen3."): value for key, value in MODEL_METADATA.items()}
    changes |= {"general.architecture": "qwen3", "qwen3.attention.key_length": 16}
    info = load(tmp_path, changes, {"output.weight": ((5, 32), "F32", bytes(640))})
    assert (info.architecture, info.head_dim, info.has_qk_norm) == ("qwen3", 16, True)
    assert not info.tie_word_embeddings


def test_biases_are_seen_in_the_tensors(tmp_path: Path) -> None:
    info = load(tmp_path, tensors={"blk.0.attn_q.bias": NORM, "blk.0.ffn_down.bias": NORM})
    assert (info.attention_bias, info.attention_output_bias, info.mlp_bias) == (True, False, True)


def test_sampling_defaults(tmp_path: Path) -> None:
    info = load(tmp_path, {"general.sampling.temp": 0.5, "general.sampling.top_k": 20})
    assert info.generation_defaults == {"temperature": 0.5, "top_k": 20}


def test_linear_rope_scaling(tmp_path: Path) -> None:
    info = load(tmp_path, {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert info.rope_scaling == RopeScaling(kind="linear", factor=4.0)
    assert load(tmp_path, {"llama.rope.scaling.type": "none"}).rope_scaling is None


def test_llama3_rope_scaling_is_recognised_by_its_factors(tmp_path: Path) -> None:
    scaling = RopeScaling(kind="llama3", factor=32.0)
    factors = frequency_factors(scaling, head_dim=64, theta=500000.0)
    shape = {"llama.embedding_length": 256, "llama.rope.freq_base": 500000.0}
    tensors = {"rope_freqs.weight": ((32,), "F32", struct.pack("<32f", *factors))}
    assert load(tmp_path, shape, tensors).rope_scaling == scaling
    factors[20] *= 1.5
    tensors = {"rope_freqs.weight": ((32,), "F32", struct.pack("<32f", *factors))}
    with pytest.raises(UnsupportedModelError, match="rope_freqs.weight are not those of Llama 3"):
        load(tmp_path, shape, tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "gemma3"}, r"architecture 'gemma3' is not supported \(llama, qwen2, qwen3 are\)"),
        ({"tokenizer.ggml.model": "t5"}, r"tokenizer 't5' is not supported \(gpt2, llama are\)"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn' is not supported"),
        ({"llama.expert_count": 8}, "mixtures of experts are not supported"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count 4 differs from the head size 8"),
        ({"split.count": 3}, "split into parts"),
    ],
)
def test_unsupported(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as raised:
        load(tmp_path, changes)
    assert "small.Q8_0.gguf" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": None}, "'general.architecture' is missing"),
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.block_count": "many"}, "'llama.block_count' must be a positive integer, but is 'many'"),
        ({"llama.embedding_length": 0}, "must be a positive integer, but is 0"),
        ({"tokenizer.ggml.tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ({"llama.attention.head_count": 3}, "3 query heads cannot share 2 KV heads"),
        ({"llama.attention.key_length": 7}, "head_dim is 7"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "must be a positive number"),
        ({"tokenizer.ggml.eos_token_id": "x"}, "must be a token id"),
    ],
)
def test_damaged(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, changes)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        load_model_info(tmp_path / "absent")
