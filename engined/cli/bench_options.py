"""Flags that the benchmarks share."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click

from engined.bench.json_file import write_json
from engined.bench.provenance import Provenance, provenance
from engined.cli.text import format_table

Number = TypeVar("Number", int, float)
_MAX_WIDTH = 250


def number_list(number_type: type[Number]) -> Callable[..., tuple[Number, ...] | None]:
    """A callback that reads numbers above zero with commas between them, such as 1,8,32; of nothing it makes None."""

    def read(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[Number, ...] | None:
        if text is None:
            return None
        try:
            numbers = tuple(number_type(part) for part in text.split(","))
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a list of numbers such as 1,8,32") from None
        if not all(0 < number < math.inf for number in numbers):
            raise click.BadParameter(f"{text!r}: every number must be above 0")
        return numbers

    return read


json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write everything there, each run included.",
)


def this_provenance() -> Provenance:
    """Of the figures that this call of the program makes."""
    return provenance(sys.argv[1:])


def print_table(rows: Sequence[Sequence[str]], num_labels: int) -> None:
    """Rows with a heading, on stdout; all columns but the first `num_labels` are numbers."""
    right = range(num_labels, len(rows[0]))
    click.echo(format_table(rows, flexible=0, min_width=8, max_width=_MAX_WIDTH, right=right))


def save(path: Path | None, document: Mapping[str, object]) -> None:
    """Write the results, if they are wanted."""
    if path is not None:
        write_json(path, document)
