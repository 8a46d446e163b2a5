"""`engined doctor`: what this machine and its settings mean for engined, and what to mend."""

import os
from collections.abc import Mapping, Sequence

import click
import orjson

from engined.config.directories import cache_directory
from engined.config.resources import allowed_cpus
from engined.doctor.compute import check_compute
from engined.doctor.files import check_files
from engined.doctor.finding import Finding, Level, error
from engined.doctor.machine import check_machine
from engined.doctor.service import check_service
from engined.doctor.variables import check_variables
from engined.errors import ListenError

_COLORS: dict[Level, str] = {"ok": "green", "warning": "yellow", "error": "red"}
_INDENT = " " * 24


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(as_json: bool) -> int:
    """Look at the machine, the kernels, the folders and the service, and say what to mend.

    A warning serves, but slowly or not for long. Exits with 1 if there is an error, which keeps `engined serve` from
    working, else with 0. Builds the CPU kernels if that has not been done yet.
    """
    sections = _check()
    if as_json:
        click.echo(orjson.dumps(sections, option=orjson.OPT_INDENT_2))
    else:
        _print(sections)
    return int(any(finding.level == "error" for findings in sections.values() for finding in findings))


def _check() -> dict[str, list[Finding]]:
    environ = dict(os.environ)
    sections = {
        "machine": check_machine(),
        "variables": check_variables(environ),
        "compute": check_compute(cache_directory(environ) / "kernels", environ, allowed_cpus()),
    }
    try:
        return sections | {"files": check_files(environ), "service": check_service()}
    except ListenError as failure:
        return sections | {"files": [error("sockets", "cannot be made", str(failure))]}


def _print(sections: Mapping[str, Sequence[Finding]]) -> None:
    for title, findings in sections.items():
        click.echo(title)
        for finding in findings:
            level = click.style(f"{finding.level:<7}", fg=_COLORS[finding.level])
            click.echo(f"  {level}  {finding.name:<13}  {finding.text}")
            if finding.remedy is not None:
                click.echo(f"{_INDENT}  remedy: {finding.remedy}")
