"""`engined bench stream`."""

import asyncio
from pathlib import Path
from typing import get_args

import click

from engined import log
from engined.bench.stream import Route, StreamOptions, measure_streams
from engined.cli.bench_options import json_option, number_list, print_table, save, this_provenance
from engined.config.schema import DEFAULT_MODEL


@click.command("stream")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Whose tokenizer and chat template are used.")
@click.option(
    "-c",
    "--clients",
    default="1,32,256",
    show_default=True,
    callback=number_list(int),
    metavar="N[,N...]",
    help="Streams at once.",
)
@click.option("--output", type=click.IntRange(1), default=500, show_default=True, help="Tokens to each client.")
@click.option(
    "--route", type=click.Choice(get_args(Route)), default="completions", show_default=True, help="Kind of the streams."
)
@click.option(
    "--step-ms",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Least time between two steps of the engine; 0: as fast as the frontend takes them.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Measure everything so often.")
@json_option
def command(
    model: str,
    clients: tuple[int, ...],
    output: int,
    route: Route,
    step_ms: float,
    rounds: int,
    json_path: Path | None,
) -> int:
    """Time the frontend's part of streaming, in front of an engine that computes nothing.

    Tokens per second, and per second of CPU time of the frontend process. Medians over the rounds, with minimum and
    maximum.
    """
    log.setup("bench", "warning")
    options = StreamOptions(route=route, output=output, step_seconds=step_ms / 1000, num_rounds=rounds)
    results = asyncio.run(measure_streams(model, clients, options))
    rows = [("CLIENTS", "tokens/s", "tokens/CPU s", "events/token")]
    for result in results:
        rates = (result.tokens_per_second.show(0), result.tokens_per_cpu_second.show(0))
        rows.append((str(result.num_clients), *rates, result.events_per_token.show(2)))
    print_table(rows, num_labels=0)
    save(
        json_path,
        {
            "benchmark": "stream",
            "provenance": this_provenance(),
            "model": model,
            "options": options,
            "results": results,
        },
    )
    return 0
