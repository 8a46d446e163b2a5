"""`ModelInfo` of the BERT family, from the config.json of its folder. Supervisor; called by `hf_config`. No torch."""

from pathlib import Path

from engined.checkpoint.fields import Fields
from engined.checkpoint.model_info import Architecture, EncoderInfo, ModelInfo, PoolingType, ScoreActivation
from engined.checkpoint.safetensors_file import SafetensorsFolder
from engined.checkpoint.sentence_transformers import PoolingSettings, read_pooling
from engined.errors import CheckpointError, UnsupportedModelError

_FAMILIES: dict[str, Architecture] = {"Bert": "bert", "Roberta": "roberta", "XLMRoberta": "roberta"}
ENCODERS = {
    f"{family}{suffix}": architecture
    for family, architecture in _FAMILIES.items()
    for suffix in ("Model", "ForSequenceClassification")
}

_DEFAULT_POOLING_TYPE: PoolingType = "mean"
"""Of a folder that says nothing; it is what the sentence-transformers library does with one."""
_ACTIVATIONS: dict[str, ScoreActivation] = {"Sigmoid": "sigmoid", "Identity": "identity"}


def read_encoder_info(folder: Path, config: Fields, hf_architecture: str, name: str) -> ModelInfo:
    """Read the `ModelInfo` of `folder`; see `load_model_info` for the errors."""
    _refuse_unsupported(config)
    architecture = ENCODERS[hf_architecture]
    num_heads, hidden_size = config.size("num_attention_heads"), config.size("hidden_size")
    if hidden_size % num_heads:
        raise CheckpointError(f"{config.source}: {num_heads} heads cannot share a hidden size of {hidden_size} evenly")
    has_head = hf_architecture.endswith("ForSequenceClassification")
    num_labels = _num_labels(config) if has_head else 0
    pooling = PoolingSettings(pooling_type="cls") if has_head else read_pooling(folder)
    # RoBERTa counts its positions from the one after the padding token's id.
    position_offset = (1 if (pad := config.token_id("pad_token_id")) is None else pad) + 1
    position_offset = position_offset if architecture == "roberta" else 0
    weights = SafetensorsFolder.open(folder)
    return ModelInfo(
        path=str(folder),
        name=name,
        checkpoint_format="safetensors",
        architecture=architecture,
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_layers=config.size("num_hidden_layers"),
        num_attention_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        max_position=config.size("max_position_embeddings") - position_offset,
        checkpoint_dtype=weights.main_dtype,
        num_parameters=weights.num_parameters,
        runner="pooling",
        pooling_type=pooling.pooling_type or _DEFAULT_POOLING_TYPE,
        num_labels=num_labels,
        normalizes_embeddings=pooling.normalizes,
        max_sequence_length=pooling.max_sequence_length,
        encoder=EncoderInfo(
            layer_norm_eps=config.number("layer_norm_eps", default=1e-12),
            type_vocab_size=config.size("type_vocab_size", default=2),
            position_offset=position_offset,
            score_activation=_score_activation(config, num_labels),
        ),
    )


def _refuse_unsupported(config: Fields) -> None:
    """Refuse what would silently change the results if it were ignored."""
    for key, supported in (("hidden_act", "gelu"), ("position_embedding_type", "absolute"), ("is_decoder", False)):
        value = config.get(key)
        if value not in (None, supported):
            raise UnsupportedModelError(f"{config.source}: {key} {value!r} is not supported ({supported!r} is)")


def _num_labels(config: Fields) -> int:
    """Outputs of the head; transformers writes a name for each, and means two where nothing is written."""
    names = config.table("id2label")
    return config.size("num_labels", default=2) if names is None else len(names.values)


def _score_activation(config: Fields, num_labels: int) -> ScoreActivation:
    """What sentence-transformers applies to a cross-encoder's outputs, by the class that it names, old key or new."""
    settings = config.table("sentence_transformers")
    name = config.get("sbert_ce_default_activation_function") if settings is None else settings.get("activation_fn")
    if name is None:
        return "sigmoid" if num_labels == 1 else "identity"
    activation = _ACTIVATIONS.get(str(name).rpartition(".")[2])
    if activation is None:
        raise UnsupportedModelError(
            f"{config.source}: the activation {name!r} is not supported ({' and '.join(_ACTIVATIONS)} are)"
        )
    return activation
