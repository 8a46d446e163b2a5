"""`--runner`: what a model runs as, and what an encoder makes of the other options."""

from dataclasses import replace
from typing import Any

import pytest

from engined.checkpoint.model_info import EncoderInfo, ModelInfo, PoolingType
from engined.config.checks import check_against_model
from engined.config.memory_plan import plan_memory
from engined.config.model_runner import resolve_runner
from engined.config.schema import CacheConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig
from engined.errors import ConfigError

DECODER = ModelInfo(
    path="/models/tiny",
    name="tiny",
    checkpoint_format="safetensors",
    architecture="qwen3",
    vocab_size=131,
    hidden_size=48,
    intermediate_size=96,
    num_layers=2,
    num_attention_heads=6,
    num_kv_heads=6,
    head_dim=8,
    max_position=2048,
)
ENCODER = replace(
    DECODER,
    architecture="bert",
    runner="pooling",
    pooling_type="mean",
    max_sequence_length=256,
    encoder=EncoderInfo(layer_norm_eps=1e-12, type_vocab_size=2),
)
EMBEDDER = replace(DECODER, runner="pooling", pooling_type="last", max_sequence_length=256)
PLENTY = 1 << 30


@pytest.mark.parametrize(
    ("info", "choice", "runner", "pooling_type"),
    [
        (DECODER, "auto", "generate", None),
        (DECODER, "generate", "generate", None),
        (DECODER, "pooling", "pooling", "last"),
        (EMBEDDER, "auto", "pooling", "last"),
        (EMBEDDER, "generate", "generate", None),
        (ENCODER, "auto", "pooling", "mean"),
        (ENCODER, "pooling", "pooling", "mean"),
    ],
)
def test_choices(info: ModelInfo, choice: Any, runner: str, pooling_type: str | None) -> None:
    resolved = resolve_runner(info, choice)
    assert (resolved.runner, resolved.pooling_type) == (runner, pooling_type)


def test_an_encoder_generates_nothing() -> None:
    with pytest.raises(ConfigError, match="--runner generate: tiny is an encoder.* leave it out"):
        resolve_runner(ENCODER, "generate")


@pytest.mark.parametrize("pooling_type", ["mean", "cls"])
def test_a_decoder_is_pooled_by_its_last_token_only(pooling_type: PoolingType) -> None:
    info = replace(EMBEDDER, pooling_type=pooling_type)
    with pytest.raises(ConfigError, match=f"pooled by {pooling_type}.*--runner generate serves it for text"):
        resolve_runner(info, "auto")
    assert resolve_runner(info, "generate").runner == "generate"


def test_an_encoder_needs_no_kv_cache() -> None:
    plan = plan_memory(Config(), ENCODER, "float32", PLENTY)
    assert (plan.num_kv_blocks, plan.kv_cache, plan.kv_bytes_per_token) == (0, 0, 0)
    assert (plan.longest_context, plan.max_model_len) == (512, 256)


@pytest.mark.parametrize(
    ("budget", "max_model_len", "served"), [(512, None, 256), (128, None, 128), (512, 400, 400), (4096, 2048, 2048)]
)
def test_an_encoders_context_is_at_most_a_step(budget: int, max_model_len: int | None, served: int) -> None:
    both = Config(
        model=ModelConfig(max_model_len=max_model_len), scheduler=SchedulerConfig(max_num_batched_tokens=budget)
    )
    check_against_model(both, ENCODER)
    assert plan_memory(both, ENCODER, "float32", PLENTY).max_model_len == served


def test_a_pooling_decoder_serves_the_length_that_its_author_used() -> None:
    assert plan_memory(Config(), EMBEDDER, "float32", PLENTY).max_model_len == 256
    longer = Config(model=ModelConfig(max_model_len=1024))
    assert plan_memory(longer, EMBEDDER, "float32", PLENTY).max_model_len == 1024
    text = resolve_runner(EMBEDDER, "generate")
    assert plan_memory(Config(), text, "float32", PLENTY).max_model_len == 2048


def test_weights_that_do_not_fit_are_refused_for_an_encoder_too() -> None:
    with pytest.raises(ConfigError, match="the weights of tiny need"):
        plan_memory(Config(), ENCODER, "float32", 1 << 16)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"cache": CacheConfig(kv_cache_memory=1 << 20)}, "--kv-cache-memory: tiny is an encoder"),
        ({"cache": CacheConfig(kv_cache_dtype="bfloat16")}, "--kv-cache-dtype: tiny is an encoder"),
        ({"scheduler": SchedulerConfig(long_prefill_token_threshold=8)}, "--long-prefill-token-threshold: tiny is"),
        ({"model": ModelConfig(quantization="int8")}, "--quantization: tiny is an encoder"),
        ({"model": ModelConfig(max_model_len=513)}, "set --max-num-batched-tokens 513 or more"),
        ({"model": ModelConfig(max_model_len=4096)}, "larger than the 2048 positions"),
        ({"parallel": ParallelConfig(tensor_parallel_size=4)}, "--tensor-parallel-size 4 does not fit"),
    ],
)
def test_options_that_mean_nothing_to_an_encoder_are_refused(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_against_model(Config(**tables), ENCODER)
    check_against_model(Config(parallel=ParallelConfig(tensor_parallel_size=3)), ENCODER)
