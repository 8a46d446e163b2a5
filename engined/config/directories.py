"""Where files of this user go: downloads, uploads, sockets and settings. The only reader of the XDG variables."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Folder of downloaded models: `$XDG_CACHE_HOME/engined`, else `~/.cache/engined`. It need not exist yet."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path must be ignored.
    root = Path(base) if os.path.isabs(base) else Path(environ.get("HOME") or Path.home()) / ".cache"
    return root / "engined"


def data_directory(environ: Mapping[str, str]) -> Path:
    """Folder of uploads and batches: `$XDG_DATA_HOME/engined`, else `~/.local/share/engined`. It need not exist."""
    base = environ.get("XDG_DATA_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path(environ.get("HOME") or Path.home()) / ".local" / "share"
    return root / "engined"


def runtime_directory(environ: Mapping[str, str]) -> Path:
    """Folder of sockets: `$XDG_RUNTIME_DIR/engined` where there is one, else `/tmp/engined-UID`. It need not exist."""
    base = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base) and os.path.isdir(base):
        return Path(base) / "engined"
    return Path("/tmp") / f"engined-{os.getuid()}"


def config_directory(environ: Mapping[str, str]) -> Path:
    """Folder of this user's settings, of all programs: `$XDG_CONFIG_HOME`, else `~/.config`. It need not exist."""
    base = environ.get("XDG_CONFIG_HOME", "")
    return Path(base) if os.path.isabs(base) else Path(environ.get("HOME") or Path.home()) / ".config"
