"""`engined pull`."""

import click

from engined import log
from engined.catalogue.resolve import resolve_model
from engined.config.schema import DEFAULT_MODEL


@click.command("pull")
@click.argument("name", default=DEFAULT_MODEL)
@click.option("--revision", metavar="TEXT", help="Branch, tag or commit, for a model named by its hub id.")
def command(name: str, revision: str | None) -> int:
    """Download the model NAME (a catalogue name or a hub id), unless it is there already, and print its path."""
    log.setup("pull")
    click.echo(resolve_model(name, revision))
    return 0
