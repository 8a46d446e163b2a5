"""The baseline file: ratios to other servers, never absolute times, with the commands that renew them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import orjson

from engined.bench.json_file import write_json
from engined.bench.rounds import Summary
from engined.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The ratios of one workload: the server that is named first over the others."""

    command: str
    """Writes this entry anew."""
    server: str
    ratios: Summary


def write_baseline(path: Path, workload: str, baseline: Baseline) -> None:
    """Write the entry of one workload into the file, and leave the others as they are.

    Raises ConfigError if what is there is no baseline.
    """
    entries: Mapping[str, object] = read_baseline(path) if path.exists() else {}
    write_json(path, dict(sorted({**entries, workload: baseline}.items())))


def read_baseline(path: Path) -> dict[str, Baseline]:
    """The entries of a file, by workload. Raises ConfigError if it is no baseline."""
    try:
        return msgspec.convert(orjson.loads(path.read_bytes()), dict[str, Baseline])
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"--baseline: {path} is no baseline: {error}") from None
