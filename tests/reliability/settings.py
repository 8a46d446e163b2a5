"""What an engine core of the tiny model is told, for parts of it that tests run by themselves."""

from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config
from engined.protocol.boot import EngineSettings
from tests.reliability import tiny_model


def engine_settings() -> EngineSettings:
    """Settings that no daemon made."""
    info = ModelInfo(
        path="tiny",
        name="tiny",
        checkpoint_format="safetensors",
        architecture="llama",
        vocab_size=tiny_model.VOCABULARY,
        hidden_size=tiny_model.HIDDEN,
        intermediate_size=tiny_model.INTERMEDIATE,
        num_layers=tiny_model.LAYERS,
        num_attention_heads=tiny_model.HEADS,
        num_kv_heads=tiny_model.KV_HEADS,
        head_dim=tiny_model.HIDDEN // tiny_model.HEADS,
        max_position=tiny_model.CONTEXT,
        eos_token_ids=(2,),
    )
    return EngineSettings(
        config=Config(),
        model_info=info,
        dtype="float32",
        kv_cache_dtype="float32",
        num_kv_blocks=64,
        max_model_len=256,
        num_threads=1,
    )
