"""`engined systemd`: writes the units of a service for this machine, or shows them. It starts nothing."""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from engined.cli.systemd_units import (
    InstalledFile,
    check_visible,
    locate_model,
    own_paths,
    system_files,
    this_program,
    user_files,
)
from engined.config.schema import DEFAULT_MODEL
from engined.errors import EnginedError

Scope = Literal["user", "system"]


def _scope_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--model",
            default=DEFAULT_MODEL,
            show_default=True,
            help="What is served; goes into the service's TOML file, unless there is one already.",
        ),
        click.option("--system", "scope", flag_value="system", help="A service of the machine, as the user engined."),
        click.option("--user", "scope", flag_value="user", help="A service of this user."),
    ):
        function = option(function)
    return function


@click.group("systemd")
def command() -> None:
    """Run engined as a service of systemd: of this user, or of the machine."""


@command.command("show")
@_scope_options
def show(scope: Scope | None, model: str) -> None:
    """Print the files that `install` would write."""
    for file in _make_files(scope, locate_model(model)):
        click.echo(f"#### {file.path}\n\n{file.text}")


@command.command("install")
@_scope_options
@click.option(
    "--prefix",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write below this folder instead of /: for packages, or for a look.",
)
def install(scope: Scope | None, model: str, prefix: Path | None) -> int:
    """Write the units for the engined that runs now, verify them, and print how to go on. Nothing is started."""
    model = locate_model(model)
    files = _make_files(scope, model)
    if scope == "system" and prefix is None:
        check_visible([*own_paths(), *([Path(model)] if os.path.isabs(model) else [])])
    written = [_write(file, prefix) for file in files]
    has_faults = not _verify([path for file, path in zip(files, written, strict=True) if file.is_unit], scope)
    click.echo("\nNext:\n")
    for line in _next_commands(scope, model):
        click.echo(f"    {line}")
    return 1 if has_faults else 0


def _make_files(scope: Scope | None, model: str) -> list[InstalledFile]:
    if scope is None:
        raise click.UsageError("give --user or --system")
    if scope == "system":
        return system_files(this_program(), model)
    return user_files(this_program(), model, os.environ)


def _write(file: InstalledFile, prefix: Path | None) -> Path:
    path = file.path if prefix is None else prefix.absolute() / file.path.relative_to("/")
    if file.is_users and path.exists():
        click.echo(f"kept     {path}")
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
        # Readable for systemd and for everybody, whatever the umask: there are no secrets in it.
        path.chmod(0o644)
    except PermissionError:
        raise EnginedError(f"cannot write {path}: run this as root (sudo), or give --prefix or --user") from None
    click.echo(f"written  {path}")
    return path


def _verify(units: Sequence[Path], scope: Scope | None) -> bool:
    """Whether systemd finds no fault in them; what it finds is printed."""
    if shutil.which("systemd-analyze") is None:
        click.echo("not verified: there is no systemd-analyze here")
        return True
    with tempfile.TemporaryDirectory() as runtime:
        # The user's manager is not needed to read its units, but the tool wants to know the folder.
        environment = {"XDG_RUNTIME_DIR": runtime} | os.environ
        result = subprocess.run(
            ["systemd-analyze", f"--{scope}", "verify", "--man=no", *map(str, units)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode == 0:
        click.echo("verified by systemd-analyze")
        return True
    click.echo(f"systemd-analyze finds faults:\n{result.stdout}{result.stderr}", err=True)
    return False


def _next_commands(scope: Scope | None, model: str) -> list[str]:
    is_name = not os.path.isabs(model)
    pull = f"{this_program()} pull {shlex.quote(model)}"
    if scope == "user":
        return [
            *([f"{pull}   # once, so that the start need not wait for it"] if is_name else []),
            "systemctl --user daemon-reload",
            "systemctl --user enable --now engined.service",
            "# or, to start it with the first connection: enable --now engined-http.socket engined-uds.socket",
            "loginctl enable-linger   # to keep it running when you log out",
        ]
    environment = "env XDG_CACHE_HOME=/var/cache HOME=/var/lib/engined"
    return [
        "systemd-sysusers engined.conf && systemd-tmpfiles --create engined.conf",
        *([f"sudo -u engined {environment} {pull}   # the service has no way out"] if is_name else []),
        f"{this_program()} keys new NAME --file /etc/engined/api-keys   # nobody is served without a key",
        "systemctl daemon-reload",
        "systemctl enable --now engined-http.socket engined-uds.socket engined.service",
        "usermod -aG engined USER   # may use unix:/run/engined/engined.sock",
    ]
