"""Writes results as JSON that people can read, too. Used by all benchmarks."""

from collections.abc import Mapping
from pathlib import Path

import orjson


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a document of plain data, dataclasses and enums. Raises OSError."""
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n")
