"""`engined check-config`: what the server would run with, and why, without starting it."""

from collections.abc import Sequence
from typing import Any

import click

from engined.checkpoint.model_info import ModelInfo
from engined.cli.config_command import config_command
from engined.config.load import LoadedConfig
from engined.config.options import all_options
from engined.config.schema import Quantization
from engined.config.units import format_bytes
from engined.supervisor.run import ServingPlan, plan_serving


def _check(loaded: LoadedConfig) -> int:
    rows = [("option", "value", "source")]
    for option in all_options():
        value = getattr(getattr(loaded.config, option.table), option.name)
        shown = _show(value) if option.name != "api_key" else f"{len(value)} key(s)" if value else "-"
        rows.append((f"{option.table}.{option.name}", shown, loaded.sources[option.name]))
    _print_table(rows)
    click.echo()
    _print_table(_plan_rows(plan_serving(loaded.config), loaded.config.model.quantization))
    return 0


def _plan_rows(plan: ServingPlan, quantization: Quantization) -> list[tuple[str, ...]]:
    memory, info = plan.memory, plan.model_info
    return [
        ("memory plan", "value"),
        ("model", f"{info.name} ({info.architecture}, {info.num_parameters / 1e6:.0f} M parameters)"),
        ("runner", _runner(info)),
        ("weights and activations", memory.dtype if quantization == "none" else f"{quantization} and {memory.dtype}"),
        ("compute threads of a rank", str(plan.num_threads)),
        ("memory free now", format_bytes(memory.available)),
        ("weights", format_bytes(memory.weights)),
        *_kv_cache_rows(plan),
        ("longest context that fits", f"{memory.longest_context} tokens (the model has {info.max_position})"),
        ("context served", f"{memory.max_model_len} tokens"),
    ]


def _runner(info: ModelInfo) -> str:
    if info.runner == "generate":
        return "generate"
    return f"pooling ({f'{info.num_labels} scores' if info.num_labels else f'{info.pooling_type}, embeddings'})"


def _kv_cache_rows(plan: ServingPlan) -> list[tuple[str, ...]]:
    memory = plan.memory
    if plan.model_info.encoder is not None:
        return [("KV cache", "none: the model is an encoder")]
    return [
        ("KV cache", f"{format_bytes(memory.kv_cache)} as {memory.kv_cache_dtype}"),
        ("KV cache of one token", f"{memory.kv_bytes_per_token} bytes"),
        ("KV blocks", str(memory.num_kv_blocks)),
    ]


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else str(value)


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


command = config_command(
    "check-config",
    _check,
    "Print the effective value of every option and where it came from, then how memory would be divided. Exits with "
    "the code and the message with which `engined serve` would refuse to start.",
)
