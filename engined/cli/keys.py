"""`engined keys`: makes keys for the file of --api-keys-file. It talks to no server."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from engined.config.api_keys import Scope, digest_key, format_line, parse_api_keys
from engined.config.load import is_credential
from engined.config.private_file import read_private_file
from engined.errors import ConfigError

KEY_PREFIX = "sk-engined-"
"""Some clients want keys to begin with sk-; the rest lets scanners find a key that has leaked."""
KEY_BYTES = 32


@click.group("keys", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Make API keys."""


@command.command("new")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(get_args(Scope)),
    default=("inference",),
    show_default=True,
    help="What the key opens; may be repeated.",
)
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Append the line to FILE, which is made if there is none, and print the key alone.",
)
def new(name: str, scopes: Sequence[Scope], path: Path | None) -> None:
    """Print a new key, this once, and the line for the file of --api-keys-file. The line holds only its digest."""
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    line = format_line(name, digest_key(key), scopes)
    if path is not None:
        _append(path, line)
        click.echo(key)
        click.echo(f"{name} is in {path}; {_when_it_counts(path)}", err=True)
        return
    click.echo(key)
    click.echo(line)
    click.echo("the first line is the key, for its holder; the second is for the file of --api-keys-file", err=True)


def _when_it_counts(path: Path) -> str:
    """How a running server gets to know a change of the file."""
    if is_credential(path, os.environ):
        return "it is a copy that systemd made: change the file behind its LoadCredential=, and restart the service"
    return (
        "a running server reads it at SIGHUP (systemctl reload engined); one that was given a copy, by systemd's "
        "LoadCredential=, when it is restarted"
    )


def _append(path: Path, line: str) -> None:
    """Add a line to a file that stays valid. Raises ConfigError if it is not, or has the name already."""
    before = read_private_file(path, "--file") if path.exists() else ""
    separator = "" if before.endswith("\n") or not before else "\n"
    parse_api_keys(f"{before}{separator}{line}\n", str(path))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{separator}{line}\n")
    except OSError as error:
        raise ConfigError(f"--file: cannot write {path}: {error.strerror}") from None
