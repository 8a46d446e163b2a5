"""Checks across options and against the model, and the division of memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engined.checkpoint.model_info import ModelInfo
from engined.checkpoint.partition import weight_bytes
from engined.config.checks import check_against_model, check_config
from engined.config.memory_plan import plan_memory
from engined.config.schema import CacheConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig
from engined.errors import ConfigError

GIB = 1 << 30

INFO = ModelInfo(
    path="/m",
    name="tiny",
    checkpoint_format="safetensors",
    architecture="llama",
    vocab_size=1000,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_attention_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position=8192,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
)
PER_TOKEN = 2 * 30 * 3 * 64 * 2
"""Bytes of KV cache a token in bfloat16."""


def _config(**tables: Any) -> Config:
    return replace(Config(), **tables)


def test_default_takes_thirty_percent_of_what_the_weights_leave() -> None:
    plan = plan_memory(Config(), INFO, "bfloat16", 4 * GIB)
    budget = int((4 * GIB - plan.weights) * 0.30)
    assert plan.weights == weight_bytes(INFO, "bfloat16", 1)
    assert plan.kv_bytes_per_token == PER_TOKEN
    assert plan.num_kv_blocks == budget // (16 * PER_TOKEN)
    assert plan.kv_cache == plan.num_kv_blocks * 16 * PER_TOKEN <= budget
    assert (plan.longest_context, plan.max_model_len) == (8192, 8192)


def test_given_kv_cache_memory_is_used() -> None:
    plan = plan_memory(_config(cache=CacheConfig(kv_cache_memory=100 * 16 * PER_TOKEN)), INFO, "bfloat16", 4 * GIB)
    assert plan.num_kv_blocks == 100
    assert plan.max_model_len == plan.longest_context == 1600


def test_kv_cache_dtype_changes_the_cost_of_a_token() -> None:
    plan = plan_memory(_config(cache=CacheConfig(kv_cache_dtype="float32")), INFO, "bfloat16", 4 * GIB)
    assert plan.kv_bytes_per_token == 2 * PER_TOKEN
    assert plan.weights == weight_bytes(INFO, "bfloat16", 1)


def test_an_int8_kv_cache_has_scales() -> None:
    plan = plan_memory(_config(cache=CacheConfig(kv_cache_dtype="int8")), INFO, "bfloat16", 4 * GIB)
    scales = 2 * INFO.num_layers * INFO.num_kv_heads * 4
    assert plan.kv_bytes_per_token == PER_TOKEN // 2 + scales


def test_ranks_share_the_kv_cache() -> None:
    config = _config(
        parallel=ParallelConfig(tensor_parallel_size=3), cache=CacheConfig(kv_cache_memory=64 * 16 * PER_TOKEN)
    )
    plan = plan_memory(config, INFO, "bfloat16", 4 * GIB)
    assert plan.num_kv_blocks == 64
    assert plan.weights == 3 * weight_bytes(INFO, "bfloat16", 3)


def test_context_that_does_not_fit_is_refused_with_what_does() -> None:
    cache = CacheConfig(kv_cache_memory=100 * 16 * PER_TOKEN)
    with pytest.raises(ConfigError) as caught:
        plan_memory(_config(cache=cache, model=ModelConfig(max_model_len=1601)), INFO, "bfloat16", 4 * GIB)
    message = str(caught.value)
    assert "enough for 1600 tokens: set --max-model-len 1600 or less" in message
    # Both remedies work.
    plan_memory(_config(cache=cache, model=ModelConfig(max_model_len=1600)), INFO, "bfloat16", 4 * GIB)
    more = CacheConfig(kv_cache_memory=int(message.rpartition("--kv-cache-memory ")[2]))
    plan_memory(_config(cache=more, model=ModelConfig(max_model_len=1601)), INFO, "bfloat16", 4 * GIB)


def test_no_room_for_a_single_block() -> None:
    with pytest.raises(ConfigError, match="enough for 0 tokens: free some memory, or set --kv-cache-memory"):
        plan_memory(_config(cache=CacheConfig(kv_cache_memory=PER_TOKEN)), INFO, "bfloat16", 4 * GIB)


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="the weights of tiny need .* as float32, but only 100 MiB of memory is free"):
        plan_memory(Config(), INFO, "float32", 100 << 20)


def test_kv_cache_memory_beyond_what_is_free() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory 8 GiB is more than the .* that are free"):
        plan_memory(_config(cache=CacheConfig(kv_cache_memory=8 * GIB)), INFO, "bfloat16", 4 * GIB)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"scheduler": SchedulerConfig(max_num_batched_tokens=100)}, "set --max-num-seqs 100 or less"),
        (
            {"scheduler": SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1)},
            "--block-size .*set --max-num-batched-tokens 16 or more",
        ),
        ({"parallel": ParallelConfig(pipeline_parallel_size=2)}, "--pipeline-parallel-size 2: only 1 is implemented"),
        ({"parallel": ParallelConfig(data_parallel_size=2)}, "--data-parallel-size 2: only 1 is implemented"),
        ({"model": ModelConfig(chat_template="/no/such.jinja")}, "--chat-template: cannot read /no/such.jinja"),
    ],
)
def test_contradictions(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(_config(**tables))


def test_sound_configurations_pass(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("x")
    check_config(Config())
    check_config(_config(model=ModelConfig(chat_template=str(template))))
    check_against_model(_config(model=ModelConfig(max_model_len=8192), parallel=ParallelConfig()), INFO)
    check_against_model(_config(parallel=ParallelConfig(tensor_parallel_size=3)), INFO)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"model": ModelConfig(max_model_len=8193)}, "larger than the 8192 positions of tiny: set 8192 or less"),
        ({"parallel": ParallelConfig(tensor_parallel_size=2)}, "--tensor-parallel-size 2 .* 1, 3"),
    ],
)
def test_what_the_model_does_not_allow(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_against_model(_config(**tables), INFO)


def test_quantized_weights_leave_more_to_the_kv_cache() -> None:
    plans = [
        plan_memory(_config(model=ModelConfig(quantization=quantization)), INFO, "bfloat16", 4 * GIB)
        for quantization in ("none", "int8", "int4")
    ]
    assert plans[0].weights > plans[1].weights > plans[2].weights > INFO.vocab_size * INFO.hidden_size * 2
    assert plans[0].num_kv_blocks < plans[1].num_kv_blocks < plans[2].num_kv_blocks


def test_quantized_weights_have_no_activations_of_float32() -> None:
    with pytest.raises(ConfigError, match="leave out --dtype float32"):
        check_config(_config(model=ModelConfig(quantization="int8", dtype="float32")))
