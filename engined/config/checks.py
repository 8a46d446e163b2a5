"""Checks of options against each other and against the model, made before anything is loaded or listened on.

Used by the supervisor at start and by check-config. What concerns memory is in `memory_plan.py`.
"""

from pathlib import Path

from engined.checkpoint.model_info import ModelInfo
from engined.checkpoint.partition import check_tensor_parallel_size
from engined.config.access_checks import check_access
from engined.config.schema import Config
from engined.errors import ConfigError


def check_config(config: Config) -> None:
    """Check what needs no model. Raises ConfigError for the first contradiction."""
    scheduler, parallel = config.scheduler, config.parallel
    budget = scheduler.max_num_batched_tokens
    if scheduler.max_num_seqs > budget:
        raise ConfigError(
            f"--max-num-seqs ({scheduler.max_num_seqs}) is larger than --max-num-batched-tokens ({budget}), but each "
            f"running request needs a token in a step: set --max-num-seqs {budget} or less"
        )
    if config.cache.block_size > budget:
        raise ConfigError(
            f"--block-size ({config.cache.block_size}) is larger than --max-num-batched-tokens ({budget}), so a step "
            f"could never fill a block: set --max-num-batched-tokens {config.cache.block_size} or more"
        )
    if parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            f"--pipeline-parallel-size {parallel.pipeline_parallel_size}: only 1 is implemented; to use several ranks "
            "set --tensor-parallel-size"
        )
    if parallel.data_parallel_size > 1:
        raise ConfigError(
            f"--data-parallel-size {parallel.data_parallel_size}: only 1 is implemented; start one server for each "
            "copy instead"
        )
    if config.model.quantization != "none" and config.model.dtype == "float32":
        raise ConfigError(
            f"--quantization {config.model.quantization} has activations of bfloat16: leave out --dtype float32"
        )
    if config.server.host == "none" and config.server.uds == "none":
        raise ConfigError("--host none and --uds none leave no way to reach the server: drop one of them")
    if config.server.uds_group is not None and config.server.uds in (None, "none"):
        raise ConfigError(
            "--uds-group needs --uds PATH in a folder that the group may enter: the default one is this user's alone"
        )
    check_access(config.server)
    _check_chat_template(config.model.chat_template)


def check_against_model(config: Config, info: ModelInfo) -> None:
    """Check what depends on the model's shape. Raises ConfigError for the first contradiction."""
    limit = info.max_position
    if config.model.max_model_len is not None and config.model.max_model_len > limit:
        raise ConfigError(
            f"--max-model-len ({config.model.max_model_len}) is larger than the {limit} positions of {info.name}: "
            f"set {limit} or less"
        )
    check_tensor_parallel_size(info, config.parallel.tensor_parallel_size)
    if info.encoder is not None:
        _check_encoder(config, info)


def _check_encoder(config: Config, info: ModelInfo) -> None:
    """Refuse what means nothing to a model that computes a sequence whole and keeps no KV cache."""
    scheduler, budget = config.scheduler, config.scheduler.max_num_batched_tokens
    if config.model.max_model_len is not None and config.model.max_model_len > budget:
        raise ConfigError(
            f"--max-model-len ({config.model.max_model_len}) is larger than --max-num-batched-tokens ({budget}), but "
            f"{info.name} is an encoder, which computes a sequence in one step: set --max-num-batched-tokens "
            f"{config.model.max_model_len} or more"
        )
    if config.model.quantization != "none":
        raise ConfigError(f"--quantization: {info.name} is an encoder, whose weights stay as they are: leave it out")
    for flag, is_set in (
        ("--kv-cache-memory", config.cache.kv_cache_memory is not None),
        ("--kv-cache-dtype", config.cache.kv_cache_dtype != "auto"),
        ("--long-prefill-token-threshold", scheduler.long_prefill_token_threshold != 0),
    ):
        if is_set:
            raise ConfigError(f"{flag}: {info.name} is an encoder, which keeps no KV cache: leave it out")


def _check_chat_template(path: str | None) -> None:
    if path is None:
        return
    try:
        Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--chat-template: cannot read {path}: {reason}") from None
