"""`ModelInfo` of a Hugging Face folder: config.json, generation_config.json, the tokenizer's EOS. Supervisor; no torch.

`auto_map` and any Python file in the folder are ignored: code that comes with a model is never run.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from engined.checkpoint.encoder_config import ENCODERS, read_encoder_info
from engined.checkpoint.fields import Fields
from engined.checkpoint.model_info import Architecture, ModelInfo, RopeScaling
from engined.checkpoint.safetensors_file import SafetensorsFolder
from engined.checkpoint.sentence_transformers import read_pooling
from engined.errors import UnsupportedModelError

_FAMILIES: dict[str, Architecture] = {"Llama": "llama", "Mistral": "mistral", "Qwen2": "qwen2", "Qwen3": "qwen3"}
DECODERS = {
    f"{family}{suffix}": architecture
    for family, architecture in _FAMILIES.items()
    for suffix in ("ForCausalLM", "Model")
}
"""Those that end in "Model" were saved without an output head: they are for pooling."""

GENERATION_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")

# transformers' own default where a Mistral config does not mention the window at all.
_MISTRAL_DEFAULT_WINDOW = 4096


def read_hf_model_info(folder: Path) -> ModelInfo:
    """Read the `ModelInfo` of `folder`; see `load_model_info` for the errors."""
    config = Fields.read(folder / "config.json", required=True)
    hf_architecture = _hf_architecture(config)
    _refuse_quantized(config)
    if hf_architecture in ENCODERS:
        info = read_encoder_info(folder, config, hf_architecture, _model_name(folder))
    else:
        info = _read_decoder_info(folder, config, hf_architecture)
    lengths = config.sizes("matryoshka_dimensions")
    is_matryoshka = config.flag("is_matryoshka", bool(lengths))
    return replace(info, is_matryoshka=is_matryoshka, matryoshka_dimensions=lengths)


def _read_decoder_info(folder: Path, config: Fields, hf_architecture: str) -> ModelInfo:
    architecture = DECODERS[hf_architecture]
    activation = config.get("hidden_act")
    if activation not in (None, "silu"):
        raise UnsupportedModelError(f"{config.source}: hidden_act {activation!r} is not supported ('silu' is)")
    generation = Fields.read(folder / "generation_config.json")
    pooling = read_pooling(folder)
    is_headless = hf_architecture.endswith("Model")
    num_heads = config.size("num_attention_heads")
    num_layers = config.size("num_hidden_layers")
    hidden_size = config.size("hidden_size")
    attention_bias = config.flag("attention_bias", False)
    weights = SafetensorsFolder.open(folder)
    return ModelInfo(
        path=str(folder),
        name=_model_name(folder),
        checkpoint_format="safetensors",
        architecture=architecture,
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_layers=num_layers,
        num_attention_heads=num_heads,
        num_kv_heads=config.size("num_key_value_heads", default=num_heads),
        head_dim=config.size("head_dim", default=128 if architecture == "qwen3" else hidden_size // num_heads),
        max_position=config.size("max_position_embeddings"),
        rms_norm_eps=config.number("rms_norm_eps", default=1e-6),
        rope_theta=_rope_theta(config),
        rope_scaling=_rope_scaling(config),
        sliding_window=_sliding_window(config, architecture, num_layers),
        attention_bias=architecture == "qwen2" or attention_bias,
        attention_output_bias=architecture in ("llama", "qwen3") and attention_bias,
        mlp_bias=architecture == "llama" and config.flag("mlp_bias", False),
        has_qk_norm=architecture == "qwen3",
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        checkpoint_dtype=weights.main_dtype,
        num_parameters=weights.num_parameters,
        bos_token_id=config.token_id("bos_token_id"),
        eos_token_ids=_eos_token_ids(folder, config, generation),
        runner="pooling" if is_headless or pooling.pooling_type is not None else "generate",
        pooling_type=pooling.pooling_type or ("last" if is_headless else None),
        normalizes_embeddings=pooling.normalizes,
        max_sequence_length=pooling.max_sequence_length,
        generation_defaults=_generation_defaults(generation),
    )


def _hf_architecture(config: Fields) -> str:
    names = config.get("architectures")
    supported = ", ".join((*DECODERS, *ENCODERS))
    if not isinstance(names, list) or not names:
        raise UnsupportedModelError(f"{config.source}: 'architectures' is missing (supported: {supported})")
    for name in names:
        if isinstance(name, str) and (name in DECODERS or name in ENCODERS):
            return name
    raise UnsupportedModelError(f"{config.source}: architecture {names[0]!r} is not supported ({supported} are)")


def _refuse_quantized(config: Fields) -> None:
    if config.get("quantization_config") is not None:
        method = (config.table("quantization_config") or config).get("quant_method")
        raise UnsupportedModelError(
            f"{config.source}: weights quantized with quant_method {method!r} are not supported"
            " (float32, float16, bfloat16 and GGUF files are)"
        )


def _rope_fields(config: Fields) -> Fields | None:
    """Rotary parameters: `rope_parameters` of transformers 5, or the older `rope_scaling`."""
    return config.table("rope_parameters") or config.table("rope_scaling")


def _rope_theta(config: Fields) -> float:
    fields = _rope_fields(config)
    if fields is not None and fields.get("rope_theta") is not None:
        return fields.number("rope_theta")
    return config.number("rope_theta", default=10000.0)


def _rope_scaling(config: Fields) -> RopeScaling | None:
    fields = _rope_fields(config)
    if fields is None:
        return None
    kind = fields.get("rope_type") or fields.get("type") or "default"
    partial = fields.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1
    if partial != 1:
        raise UnsupportedModelError(f"{fields.source}: partial_rotary_factor {partial!r} is not supported (1 is)")
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=fields.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=fields.number("factor"),
            low_freq_factor=fields.number("low_freq_factor"),
            high_freq_factor=fields.number("high_freq_factor"),
            original_max_position=fields.size("original_max_position_embeddings"),
        )
    raise UnsupportedModelError(
        f"{fields.source}: rope type {kind!r} is not supported (default, linear and llama3 are)"
    )


def _sliding_window(config: Fields, architecture: Architecture, num_layers: int) -> int | None:
    """The window of every layer, or None. Layers that differ from each other are refused."""
    window = config.optional_size("sliding_window")
    if architecture == "mistral":
        return window if "sliding_window" in config.values else _MISTRAL_DEFAULT_WINDOW
    kinds = _layer_kinds(config, num_layers)
    if kinds == {"full_attention"}:
        return None
    if kinds == {"sliding_attention"} and window is not None:
        return window
    raise UnsupportedModelError(
        f"{config.source}: layers with {' and '.join(sorted(kinds))} are not supported together"
        " (one kind of attention in all layers is)"
    )


def _layer_kinds(config: Fields, num_layers: int) -> set[str]:
    """Kinds of attention that the layers use, from `layer_types` or, before it existed, from Qwen's switches."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return {str(kind) for kind in kinds}
    if not config.flag("use_sliding_window", False):
        return {"full_attention"}
    first_sliding_layer = config.get("max_window_layers")
    if not isinstance(first_sliding_layer, int) or first_sliding_layer >= num_layers:
        return {"full_attention"}
    return {"sliding_attention"} if first_sliding_layer <= 0 else {"full_attention", "sliding_attention"}


def _eos_token_ids(folder: Path, config: Fields, generation: Fields) -> tuple[int, ...]:
    """Union of the ids in config, generation config and tokenizer, in this order."""
    declared = (*config.token_ids("eos_token_id"), *generation.token_ids("eos_token_id"))
    return tuple(dict.fromkeys((*declared, *_tokenizer_eos(folder))))


def _tokenizer_eos(folder: Path) -> tuple[int, ...]:
    """The id of the `eos_token` that tokenizer_config.json names by its text."""
    token = Fields.read(folder / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return ()
    tokenizer = Fields.read(folder / "tokenizer.json")
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict) and entry.get("content") == text and isinstance(entry.get("id"), int):
            return (entry["id"],)
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    token_id = vocabulary.get(text) if isinstance(vocabulary, dict) else None
    return (token_id,) if isinstance(token_id, int) else ()


def _generation_defaults(generation: Fields) -> dict[str, Any] | None:
    """Sampling fields that the model's author set, by the names of generation_config.json."""
    defaults = {
        key: value
        for key in GENERATION_FIELDS
        if isinstance(value := generation.get(key), (int, float)) and not isinstance(value, bool)
    }
    return defaults or None


def _model_name(folder: Path) -> str:
    """The folder's name; for a snapshot in the hub's cache the name of its repository ("org/name")."""
    resolved = folder.absolute()
    repository = resolved.parent.parent.name
    if resolved.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return resolved.name
