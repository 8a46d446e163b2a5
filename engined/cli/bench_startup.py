"""`engined bench startup`."""

import asyncio
from pathlib import Path

import click

from engined.bench.startup import OWN_FLAGS, StartResult, measure_start
from engined.bench.summary import Spread
from engined.cli.bench_options import json_option, print_table, save, this_provenance
from engined.errors import ConfigError

_MIB = 1 << 20


@click.command("startup")
@click.argument("serve_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS OF SERVE]")
@click.option("-n", "--starts", type=click.IntRange(1), default=3, show_default=True, help="Starts.")
@click.option("--timeout", type=click.FloatRange(1), default=300.0, show_default=True, help="Seconds for one start.")
@json_option
def command(serve_arguments: tuple[str, ...], starts: int, timeout: float, json_path: Path | None) -> int:
    """Start `engined serve` some times, each time from nothing, and get one token.

    The first start may build kernels or download the model, and finds its files in no cache of the kernel: --json has
    each start by itself. PSS counts shared memory once. For example:

    engined bench startup -n 5 -- MODEL --max-num-seqs 8
    """
    for argument in serve_arguments:
        if argument.partition("=")[0] in OWN_FLAGS:
            raise ConfigError(f"{argument}: each start has a socket and data of its own; leave it out")
    results: list[StartResult] = []
    for _ in range(starts):
        results.append(asyncio.run(measure_start(serve_arguments, timeout)))
        click.echo(f"start {len(results)}: ready after {results[-1].ready:.2f} s", err=True)
    columns = {
        "ready s": Spread.of([result.ready for result in results]).show(2),
        "first token s": Spread.of([result.first_token for result in results]).show(2),
        "PSS MiB": Spread.of([result.pss / _MIB for result in results]).show(0),
        "RSS MiB": Spread.of([result.rss / _MIB for result in results]).show(0),
    }
    print_table([("STARTS", *columns), (str(starts), *columns.values())], num_labels=0)
    save(json_path, {"benchmark": "startup", "provenance": this_provenance(), "starts": results})
    return 0
