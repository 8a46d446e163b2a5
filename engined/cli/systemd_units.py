"""The files of engined's systemd services, made from those in systemd/ for the paths of this machine. No IO but reading
what came with engined; `systemd` writes, verifies and shows them."""

import importlib.resources
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import engined
from engined.config.directories import config_directory
from engined.errors import ConfigError

SHIPPED_PROGRAM = "/opt/engined/bin/engined"
"""What the files in systemd/ start."""
SYSTEM_CONFIG = Path("/etc/engined/engined.toml")
_SYSTEM_UNITS = ("engined.service", "engined@.service", "engined-http.socket", "engined-uds.socket", "engined.slice")
_USER_UNITS = ("engined.service", "engined-http.socket", "engined-uds.socket")
_HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))
"""What ProtectHome= and PrivateTmp= take away from the system's service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFile:
    """A file to be written."""

    path: Path
    text: str
    is_users: bool = False
    """Whether it is the user's from then on: one that is there already stays as it is."""

    @property
    def is_unit(self) -> bool:
        """Whether systemd-analyze can verify it."""
        return self.path.suffix in (".service", ".socket", ".slice")


def this_program() -> str:
    """The command that starts the engined that runs now, as ExecStart= takes it."""
    script = Path(sys.executable).with_name("engined")
    return _quote(str(script)) if script.exists() else f"{_quote(sys.executable)} -P -m engined.cli.main"


def system_files(program: str, model: str) -> list[InstalledFile]:
    """Of a service of the system, which runs as the user engined."""
    server = {"uds": "/run/engined/engined.sock", "uds_group": "engined"}
    return [
        *_units(_SYSTEM_UNITS, "", Path("/etc/systemd/system"), program),
        InstalledFile(path=Path("/etc/sysusers.d/engined.conf"), text=_shipped("engined.sysusers.conf")),
        InstalledFile(path=Path("/etc/tmpfiles.d/engined.conf"), text=_shipped("engined.tmpfiles.conf")),
        InstalledFile(path=SYSTEM_CONFIG, text=_config_text(SYSTEM_CONFIG, model, server), is_users=True),
    ]


def user_files(program: str, model: str, environ: Mapping[str, str]) -> list[InstalledFile]:
    """Of a service of one user, which starts when that user logs in."""
    folder = config_directory(environ)
    config = folder / "engined" / "engined.toml"
    return [
        *_units(_USER_UNITS, "user/", folder / "systemd" / "user", program),
        InstalledFile(path=config, text=_config_text(config, model, {}), is_users=True),
    ]


def check_visible(paths: Sequence[Path]) -> None:
    """Raise ConfigError if the system's service could not see one of `paths`."""
    for path in paths:
        if hidden := next((folder for folder in _HIDDEN if path.is_relative_to(folder)), None):
            raise ConfigError(
                f"{path} is in {hidden}, which is hidden from the system's services: put it elsewhere, or use --user "
                "(engined itself: `python3 -m venv /opt/engined`, install it there, run /opt/engined/bin/engined)"
            )


def own_paths() -> list[Path]:
    """What this engined needs to run: its environment, its interpreter, its code."""
    return [Path(sys.prefix), Path(sys.base_prefix).resolve(), Path(engined.__file__).resolve().parent]


def locate_model(model: str) -> str:
    """`model` for a service, which does not start in this folder: a path becomes absolute, a name stays."""
    return os.path.abspath(model) if os.path.exists(model) else model


def _units(names: Sequence[str], source: str, folder: Path, program: str) -> list[InstalledFile]:
    return [
        InstalledFile(path=folder / name, text=_shipped(source + name).replace(SHIPPED_PROGRAM, program))
        for name in names
    ]


def _shipped(name: str) -> str:
    return importlib.resources.files("engined").joinpath("systemd", name).read_text(encoding="utf-8")


def _config_text(path: Path, model: str, server: Mapping[str, str]) -> str:
    # JSON strings are TOML strings, too.
    lines = [f"# Options of engined.service. `engined check-config --config {path}` shows what they come to.", ""]
    lines += ["[model]", f"model = {json.dumps(model)}"]
    if server:
        lines += ["", "[server]", *(f"{key} = {json.dumps(value)}" for key, value in server.items())]
    return "\n".join(lines) + "\n"


def _quote(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if escaped != path or " " in path else path
