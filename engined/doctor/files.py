"""The folders that engined writes to: where they are, what they hold, and whether they can be written."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from engined.config.directories import cache_directory, data_directory
from engined.config.units import format_bytes
from engined.doctor.finding import Finding, ok, warning
from engined.ipc.paths import default_uds_path

_LITTLE_DISK = 1 << 30
"""Bytes free: less does not hold a small model."""
_LITTLE_SHARED_MEMORY = 1 << 20
"""Bytes free: locks take a page each."""


def check_files(environ: Mapping[str, str]) -> list[Finding]:
    """Cache, uploads, shared memory. Raises ListenError if the folder of the sockets is not this user's alone."""
    cache, data = cache_directory(environ), data_directory(environ)
    return [
        _folder("cache", cache, _cache_content(cache), "XDG_CACHE_HOME"),
        _folder("data", data, format_bytes(_size(data)), "XDG_DATA_HOME or --data-dir"),
        ok("sockets", str(default_uds_path().parent)),
        _shared_memory(Path("/dev/shm")),
    ]


def _folder(name: str, path: Path, content: str, setting: str) -> Finding:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return warning(name, f"{path} cannot be written: nothing is kept there", f"set {setting}, or mend {existing}")
    free = shutil.disk_usage(existing).free
    text = f"{path}: {content}, {format_bytes(free)} free"
    if free < _LITTLE_DISK:
        return warning(name, text, f"make room, or set {setting}")
    return ok(name, text)


def _cache_content(cache: Path) -> str:
    builds = list((cache / "kernels").glob("*.so"))
    kernels = sum(_size(build) for build in builds)
    return f"models {format_bytes(_size(cache) - _size(cache / 'kernels'))}, {len(builds)} builds of the kernels " + (
        format_bytes(kernels)
    )


def _size(path: Path) -> int:
    """Bytes of a file, or of the files below a folder; 0 if there is none."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def _shared_memory(path: Path) -> Finding:
    remedy = "docker run --shm-size 64m, or mount a tmpfs there"
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return warning("shared memory", f"{path} is not there, where libraries keep their locks", remedy)
    text = f"{path}: {format_bytes(usage.free)} of {format_bytes(usage.total)} free"
    if usage.free < _LITTLE_SHARED_MEMORY:
        return warning("shared memory", f"{text}, where libraries keep their locks", remedy)
    return ok("shared memory", text)
