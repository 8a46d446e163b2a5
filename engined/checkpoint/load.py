"""`load_model_info`: what a model is, from its own files. Supervisor and tests; milliseconds, no torch."""

from pathlib import Path

from engined.checkpoint.gguf import GgufFile
from engined.checkpoint.gguf_config import read_gguf_model_info
from engined.checkpoint.hf_config import read_hf_model_info
from engined.checkpoint.model_info import ModelInfo
from engined.errors import CheckpointError, ModelNotFoundError


def load_model_info(path: str | Path) -> ModelInfo:
    """Read the `ModelInfo` of a Hugging Face folder or a .gguf file.

    Raises ModelNotFoundError if there is nothing at `path`, CheckpointError for a damaged file, UnsupportedModelError
    for a model that is well-formed but has something that we do not implement.
    """
    path = Path(path)
    if path.is_dir():
        info = read_hf_model_info(path)
    elif path.is_file():
        info = read_gguf_model_info(GgufFile.open(path))
    else:
        raise ModelNotFoundError(f"{path}: no such file or folder")
    _check_heads(info)
    return info


def _check_heads(info: ModelInfo) -> None:
    if info.num_attention_heads % info.num_kv_heads:
        raise CheckpointError(
            f"{info.path}: {info.num_attention_heads} query heads cannot share {info.num_kv_heads} KV heads evenly"
        )
    if info.encoder is None and info.head_dim % 2:
        raise CheckpointError(f"{info.path}: head_dim is {info.head_dim}; rotary embedding needs an even one")
