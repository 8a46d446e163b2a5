"""Where figures come from: the machine, the versions, the git revision, the command. Used by all benchmarks."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from engined import __version__
from engined.config.resources import allowed_cpus, cpu_flags, cpu_model

_SOURCE = Path(__file__).parents[1]
_NOTED_FLAGS = frozenset(
    {"avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
    | {"amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"}
)
"""Those that decide which kernels can run."""
_SECRET_FLAG = "--api-key"
_HIDDEN = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What it ran on."""

    cpu_model: str
    num_cpus: int
    """That affinity and cgroup allow."""
    cpu_flags: list[str]
    memory: int
    """Bytes."""
    system: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """The commit of the source tree."""

    commit: str
    is_dirty: bool
    """Tracked files differ from the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Everything that a figure is worth nothing without."""

    time: str
    command: str
    machine: Machine
    versions: dict[str, str]
    revision: Revision | None
    """None for an installed package."""


def provenance(arguments: Sequence[str]) -> Provenance:
    """Of figures that `engined` made when it was called with `arguments`."""
    return Provenance(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["engined", *hide_keys(arguments)]),
        machine=_machine(),
        versions={
            "engined": __version__,
            "torch": importlib.metadata.version("torch"),
            "python": platform.python_version(),
        },
        revision=_revision(),
    )


def hide_keys(arguments: Sequence[str]) -> list[str]:
    """The arguments without the API keys among them: results are published."""
    shown: list[str] = []
    for argument in arguments:
        if shown and shown[-1] == _SECRET_FLAG:
            shown.append(_HIDDEN)
        elif argument.startswith(f"{_SECRET_FLAG}="):
            shown.append(f"{_SECRET_FLAG}={_HIDDEN}")
        else:
            shown.append(argument)
    return shown


def _machine() -> Machine:
    return Machine(
        cpu_model=cpu_model() or platform.machine(),
        num_cpus=allowed_cpus(),
        cpu_flags=sorted(cpu_flags() & _NOTED_FLAGS),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def _revision() -> Revision | None:
    # An installed package may lie inside the repository of somebody's project: that is not ours.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None or (commit := _git("rev-parse", "HEAD")) is None:
        return None
    return Revision(commit=commit, is_dirty=bool(_git("status", "--porcelain", "--untracked-files=no", ":/")))


def _git(*arguments: str) -> str | None:
    """What git says of the source tree; None if it fails, or is not there."""
    try:
        result = subprocess.run(
            ["git", "-C", str(_SOURCE), *arguments], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
