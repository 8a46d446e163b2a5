"""How the author of an embedding model pools it: modules.json and its companions, as sentence-transformers writes them.

Supervisor; called by the config readers. No torch, and not the library itself.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engined.checkpoint.fields import Fields
from engined.checkpoint.model_info import PoolingType
from engined.errors import CheckpointError, UnsupportedModelError

_POOLING_TYPES: dict[str, PoolingType] = {
    "mean": "mean",
    "cls": "cls",
    "lasttoken": "last",
    "mean_tokens": "mean",
    "cls_token": "cls",
}
"""By the value of `pooling_mode`, or by what follows it in the name of a switch ("pooling_mode_mean_tokens")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingSettings:
    """What the files say; the defaults are those of a folder that has none of them."""

    pooling_type: PoolingType | None = None
    normalizes: bool = True
    max_sequence_length: int | None = None


def read_pooling(folder: Path) -> PoolingSettings:
    """The settings of `folder`.

    Raises CheckpointError for a damaged file, UnsupportedModelError for a step between hidden states and embedding
    that we do not have.
    """
    modules = _read_modules(folder / "modules.json")
    if not modules:
        return PoolingSettings()
    by_kind = {str(module.get("type")).rpartition(".")[2]: str(module.get("path")) for module in modules}
    for kind, path in by_kind.items():
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise UnsupportedModelError(
                f"{folder / 'modules.json'}: the module {kind} in {path!r} is not supported "
                "(Transformer, Pooling and Normalize are)"
            )
    if "Pooling" not in by_kind:
        raise UnsupportedModelError(f"{folder / 'modules.json'}: a model without a Pooling module is not supported")
    return PoolingSettings(
        pooling_type=_pooling_type(Fields.read(folder / by_kind["Pooling"] / "config.json", required=True)),
        normalizes="Normalize" in by_kind,
        max_sequence_length=_max_sequence_length(folder),
    )


def _read_modules(path: Path) -> list[dict[str, Any]]:
    """The steps that turn a text into an embedding; empty if there is no such file."""
    try:
        modules = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, orjson.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path}: must hold a list of objects")
    return modules


def _pooling_type(config: Fields) -> PoolingType:
    """The one way of pooling that is switched on."""
    prefix = "pooling_mode_"
    switched_on = [key.removeprefix(prefix) for key in config.values if key.startswith(prefix) and config.get(key)]
    mode = config.get("pooling_mode") or switched_on
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    if not isinstance(mode, str) or mode not in _POOLING_TYPES:
        raise UnsupportedModelError(
            f"{config.source}: pooling by {mode!r} is not supported (one of {', '.join(_POOLING_TYPES)} is)"
        )
    return _POOLING_TYPES[mode]


def _max_sequence_length(folder: Path) -> int | None:
    """Of sentence_bert_config.json; the middle of the name differs with the model."""
    lengths = [Fields.read(path).optional_size("max_seq_length") for path in folder.glob("sentence_*_config.json")]
    return next((length for length in lengths if length is not None), None)
