"""`ModelInfo` of pooling models: the BERT family, sentence-transformers folders, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from engined.checkpoint.load import load_model_info
from engined.checkpoint.model_info import EncoderInfo, ModelInfo
from engined.errors import CheckpointError, EnginedError, UnsupportedModelError
from tests.checkpoint.gguf_files import MODEL_METADATA, gguf_bytes, write
from tests.checkpoint.test_hf_config import write_folder

BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "type_vocab_size": 3,
    "num_key_value_heads": ...,
    "rms_norm_eps": ...,
    "bos_token_id": ...,
    "eos_token_id": ...,
}
ROBERTA = BERT | {"architectures": ["XLMRobertaModel"], "pad_token_id": 1}
SCORER = BERT | {"architectures": ["BertForSequenceClassification"]}
TORCH = "torch.nn.modules"
MODULES = {
    "": "sentence_transformers.models.Transformer",
    "1_Pooling": "sentence_transformers.models.Pooling",
    "2_Normalize": "sentence_transformers.models.Normalize",
}


def load(folder: Path, changes: dict[str, Any]) -> ModelInfo:
    return load_model_info(write_folder(folder, **changes))


def write_modules(folder: Path, pooling: dict[str, Any], modules: dict[str, str] | None = None) -> None:
    """The files of sentence-transformers; `modules` by their path."""
    entries = [{"path": path, "type": kind} for path, kind in (modules or MODULES).items()]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_all_fields_of_an_encoder(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-bert"
    folder.mkdir()
    assert load(folder, BERT) == ModelInfo(
        path=str(folder),
        name="tiny-bert",
        checkpoint_format="safetensors",
        architecture="bert",
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_attention_heads=4,
        num_kv_heads=4,
        head_dim=8,
        max_position=64,
        checkpoint_dtype="bfloat16",
        num_parameters=6,
        runner="pooling",
        pooling_type="mean",
        encoder=EncoderInfo(layer_norm_eps=1e-5, type_vocab_size=3),
    )


def test_the_positions_of_roberta_start_behind_its_padding(tmp_path: Path) -> None:
    info = load(tmp_path, ROBERTA)
    assert (info.architecture, info.max_position) == ("roberta", 62)
    assert info.encoder is not None and info.encoder.position_offset == 2


@pytest.mark.parametrize(
    ("changes", "num_labels", "activation"),
    [
        ({"id2label": {"0": "LABEL_0"}}, 1, "sigmoid"),
        ({}, 2, "identity"),
        ({"num_labels": 1}, 1, "sigmoid"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, 3, "identity"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": f"{TORCH}.Identity"}}, 1, "identity"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": f"{TORCH}.Identity"}, 1, "identity"),
        ({"num_labels": 2, "sentence_transformers": {"activation_fn": f"{TORCH}.Sigmoid"}}, 2, "sigmoid"),
    ],
)
def test_heads(changes: dict[str, Any], num_labels: int, activation: str, tmp_path: Path) -> None:
    info = load(tmp_path, SCORER | changes)
    assert (info.num_labels, info.pooling_type) == (num_labels, "cls")
    assert info.encoder is not None and info.encoder.score_activation == activation


@pytest.mark.parametrize(
    ("pooling", "pooling_type"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "word_embedding_dimension": 32}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
@pytest.mark.parametrize("changes", [BERT, {"architectures": ["Qwen3ForCausalLM"]}])
def test_pooling_is_what_the_author_says(
    changes: dict[str, Any], pooling: dict[str, Any], pooling_type: str, tmp_path: Path
) -> None:
    write_modules(tmp_path, pooling)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 48, "do_lower_case": false}')
    info = load(tmp_path, changes)
    assert (info.runner, info.pooling_type, info.normalizes_embeddings) == ("pooling", pooling_type, True)
    assert (info.max_position, info.max_sequence_length, info.default_max_len) == (64, 48, 48)


def test_a_model_whose_author_does_not_normalize(tmp_path: Path) -> None:
    modules = {path: kind for path, kind in MODULES.items() if path != "2_Normalize"}
    write_modules(tmp_path, {"pooling_mode_mean_tokens": True}, modules)
    assert load(tmp_path, BERT).normalizes_embeddings is False


def test_a_decoder_without_a_head_pools(tmp_path: Path) -> None:
    info = load(tmp_path, {"architectures": ["MistralModel"], "sliding_window": None})
    assert (info.architecture, info.runner, info.pooling_type) == ("mistral", "pooling", "last")


@pytest.mark.parametrize(("number", "runner", "kind"), [(3, "pooling", "last"), (0, "generate", None)])
def test_gguf(number: int, runner: str, kind: str | None, tmp_path: Path) -> None:
    norm = {"output_norm.weight": ((32,), "F32", bytes(128))}
    path = write(tmp_path / "m.gguf", gguf_bytes(MODEL_METADATA | {"llama.pooling_type": number}, norm))
    info = load_model_info(path)
    assert (info.runner, info.pooling_type) == (runner, kind)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act 'gelu_new' is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder True is not supported"),
        ({"architectures": ["BertForMaskedLM"]}, "'BertForMaskedLM' is not supported"),
        (SCORER | {"sbert_ce_default_activation_function": "x.Tanh"}, "activation 'x.Tanh' is not supported"),
    ],
)
def test_what_would_change_the_results_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        load(tmp_path, BERT | changes)


def test_heads_that_do_not_divide(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="5 heads cannot share a hidden size of 32"):
        load(tmp_path, BERT | {"num_attention_heads": 5})


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (MODULES | {"3_Dense": "sentence_transformers.models.Dense"}, {}, "Dense in '3_Dense' is not supported"),
        ({"": MODULES[""]}, {}, "without a Pooling module"),
        (MODULES, {"pooling_mode_max_tokens": True}, r"pooling by 'max_tokens' is not supported"),
        (MODULES, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "pooling by .* is not supported"),
        (MODULES, {}, "1_Pooling/config.json: pooling by"),
    ],
)
def test_modules_that_we_do_not_have(
    modules: dict[str, str], pooling: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_modules(tmp_path, pooling, modules)
    with pytest.raises(UnsupportedModelError, match=message):
        load(tmp_path, BERT)


@pytest.mark.parametrize("content", ["{", "{}", "[1]"])
def test_damaged_modules(content: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(EnginedError, match=r"modules\.json"):
        load(tmp_path, BERT)
