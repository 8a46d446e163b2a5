"""Decides what a model runs as: `--runner`, or what its own files say. Used by the supervisor and check-config."""

from dataclasses import replace

from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import RunnerChoice
from engined.errors import ConfigError


def resolve_runner(info: ModelInfo, choice: RunnerChoice) -> ModelInfo:
    """`info` with the runner that was chosen. Raises ConfigError for one that the model cannot be."""
    if (info.runner if choice == "auto" else choice) == "pooling":
        return _as_pooling(info)
    if info.encoder is not None:
        raise ConfigError(
            f"--runner generate: {info.name} is an encoder, which gives embeddings or scores and no text: leave it out"
        )
    return replace(info, runner="generate", pooling_type=None, max_sequence_length=None)


def _as_pooling(info: ModelInfo) -> ModelInfo:
    pooling_type = info.pooling_type or "last"
    if info.encoder is None and pooling_type != "last":
        raise ConfigError(
            f"{info.name} is a decoder that is pooled by {pooling_type}, which is not supported: decoders are pooled "
            "by their last token, encoders by mean or cls; --runner generate serves it for text"
        )
    return replace(info, runner="pooling", pooling_type=pooling_type)
