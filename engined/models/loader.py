"""Opens a checkpoint and fills a model from it: every name and shape is checked, then the wanted parts are read."""

import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

from engined.checkpoint.gguf import GgufFile
from engined.checkpoint.model_info import ModelInfo
from engined.checkpoint.safetensors_file import SafetensorsFolder
from engined.errors import CheckpointError
from engined.layers.tensor_spec import BlockDestination, TensorSpec
from engined.layers.weight_method import WeightMethod
from engined.models.checkpoint import Checkpoint, GgufCheckpoint, OnRead, SafetensorsCheckpoint
from engined.process.progress import LoadProgress, PhaseProgress, ProgressReporter, report_nothing

_MAX_NAMES_SHOWN = 8
_CUT = "cut by --tensor-parallel-size inside their blocks of 4 bits (set fewer ranks, or --quantization int8)"


def open_checkpoint(info: ModelInfo) -> Checkpoint:
    """The weights of the model that `info` describes. Raises ModelError, naming the file."""
    if info.checkpoint_format == "gguf":
        return GgufCheckpoint(GgufFile.open(info.path), info)
    return SafetensorsCheckpoint(SafetensorsFolder.open(Path(info.path)))


def load_tensors(
    specs: Sequence[TensorSpec],
    checkpoint: Checkpoint,
    *,
    unused: Collection[str] = (),
    report_progress: ProgressReporter = report_nothing,
) -> None:
    """Fill the destination of every spec.

    `unused` names tensors that may be there and are not read. Raises CheckpointError, before anything is read, that
    lists all tensors that are missing, misshaped or not wanted.
    """
    check_tensors(specs, checkpoint, unused)
    num_bytes = sum(checkpoint.num_bytes(spec.name, math.prod(spec.part_shape)) for spec in specs)
    progress = LoadProgress(report_progress, len(specs), num_bytes)

    def read(spec: TensorSpec) -> None:
        if isinstance(spec.destination, BlockDestination):
            _read_blocks(spec, spec.destination, checkpoint, progress.add_bytes)
        else:
            checkpoint.read_into(spec.name, spec.slices, spec.destination, progress.add_bytes)
        progress.add_tensor()

    with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="load") as pool:
        for _ in pool.map(read, specs):
            pass


def _read_blocks(spec: TensorSpec, destination: BlockDestination, checkpoint: Checkpoint, on_read: OnRead) -> None:
    if checkpoint.block_columns(spec.name) is not None:
        checkpoint.read_blocks_into(spec.name, spec.slices, destination.blocks, on_read)
        return
    weights = torch.empty(spec.part_shape, dtype=torch.bfloat16)
    checkpoint.read_into(spec.name, spec.slices, weights, on_read)
    destination.quantize(weights, destination.blocks)


def pack_weights(model: nn.Module, report_progress: ProgressReporter = report_nothing) -> None:
    """Let all weights of a loaded model be packed. Each plain one goes as its packed form comes: memory holds the
    weights once, unless somebody keeps the specs that they were loaded by."""
    methods = [module for module in model.modules() if isinstance(module, WeightMethod)]
    progress = PhaseProgress(report_progress, "packing weights")
    for number, method in enumerate(methods, start=1):
        method.finish_load()
        progress.note(f"{number} of {len(methods)}")


def check_tensors(specs: Sequence[TensorSpec], checkpoint: Checkpoint, unused: Collection[str] = ()) -> None:
    """Compare what the model wants with what the checkpoint has; raises CheckpointError."""
    wanted = {spec.name: spec.shape for spec in specs}
    missing = [checkpoint.describe(name) for name in wanted if name not in checkpoint.shapes]
    misshaped = [
        f"{checkpoint.describe(name)} is {checkpoint.shapes[name]}, expected {shape}"
        for name, shape in wanted.items()
        if name in checkpoint.shapes and checkpoint.shapes[name] != shape
    ]
    cut = [
        f"{checkpoint.describe(spec.name)} between columns {spec.slices[-1].start} and {spec.slices[-1].stop}, but it "
        f"packs {columns} at a time"
        for spec in specs
        if isinstance(spec.destination, BlockDestination)
        and spec.name in checkpoint.shapes
        and (columns := checkpoint.block_columns(spec.name)) is not None
        and (spec.slices[-1].start % columns or spec.slices[-1].stop % columns)
    ]
    known = {*wanted, *unused}
    extra = [checkpoint.describe(name) for name in checkpoint.shapes if name not in known and not _is_harmless(name)]
    problems = [
        f"{what}: {_shorten(names)}"
        for what, names in (
            ("missing", missing),
            ("of the wrong shape", misshaped),
            (_CUT, cut),
            ("not part of the model", extra),
        )
        if names
    ]
    if "lm_head.weight" in missing:
        problems.append("the config says tie_word_embeddings is false, so lm_head.weight must be there")
    if problems:
        raise CheckpointError(f"{checkpoint.path}: these tensors are {'; '.join(problems)}")


def _is_harmless(name: str) -> bool:
    """Tensors that some files carry though the model computes or shares them: a tied head, rotary frequencies."""
    return name in ("lm_head.weight", "rope_freqs.weight") or name.endswith(".rotary_emb.inv_freq")


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES_SHOWN])
    return shown if len(names) <= _MAX_NAMES_SHOWN else f"{shown} and {len(names) - _MAX_NAMES_SHOWN} more"
