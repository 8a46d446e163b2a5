"""Daemons that run, the public socket, and the service of systemd."""

import shutil
import subprocess
from pathlib import Path

from engined.client.errors import ClientError, ServerUnreachableError
from engined.client.sync import Client
from engined.doctor.finding import Finding, ok, warning
from engined.ipc.paths import default_uds_path

_TITLE = b"engined: supervisor"
_TIMEOUT = 3.0
"""Seconds that a server, or systemd, gets to answer."""
_UNIT = "engined.service"


def check_service() -> list[Finding]:
    """One finding for each part."""
    return [_daemons(), _socket(default_uds_path()), *_units()]


def _daemons() -> Finding:
    pids = sorted(
        int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit() and _is_daemon(folder)
    )
    return ok("daemons", f"running: pid {', '.join(map(str, pids))}" if pids else "none runs")


def _is_daemon(folder: Path) -> bool:
    try:
        return (folder / "cmdline").read_bytes().startswith(_TITLE)
    except OSError:
        return False


def _socket(path: Path) -> Finding:
    if not path.exists():
        return ok("socket", f"nobody listens on {path}")
    try:
        Client(uds=path, timeout=_TIMEOUT).health()
    except ServerUnreachableError:
        return warning("socket", f"nobody answers on {path}", "nothing, if no daemon runs: the next one takes it over")
    except ClientError as error:
        return warning("socket", f"{path} is not ready: {error}", "engined status")
    return ok("socket", f"{path} answers, and is ready")


def _units() -> list[Finding]:
    """Of the system and of this user; nothing where there is no systemd."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return [ok("systemd", "not here")]
    return [_unit([systemctl, *scope], name) for scope, name in (([], "system"), (["--user"], "user"))]


def _unit(systemctl: list[str], name: str) -> Finding:
    properties = ("LoadState", "ActiveState", "SubState", "Result")
    command = [*systemctl, "show", _UNIT, f"--property={','.join(properties)}"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ok(f"{name} unit", "systemd does not run, or does not answer")
    state = dict(line.partition("=")[::2] for line in shown.splitlines())
    if state.get("LoadState") == "not-found":
        return ok(f"{name} unit", f"none; `engined systemd install --{name}` makes one")
    text = f"{state.get('ActiveState')} ({state.get('SubState')}, {state.get('Result')})"
    if state.get("ActiveState") == "failed":
        user = "--user " if name == "user" else ""
        return warning(f"{name} unit", text, f"journalctl {user}-u {_UNIT} says why")
    return ok(f"{name} unit", text)
