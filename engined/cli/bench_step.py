"""`engined bench step`."""

from pathlib import Path
from typing import get_args

import click

from engined.bench.step import Part, Scenario, StepResult, measure_steps
from engined.cli.bench_options import json_option, number_list, print_table, save, this_provenance

_DEFAULT_REQUESTS = "1,8,32,64,128,256,512"


@click.command("step")
@click.option(
    "--requests",
    "requests",
    default=_DEFAULT_REQUESTS,
    show_default=True,
    callback=number_list(int),
    metavar="N[,N...]",
    help="Requests that run at once.",
)
@click.option("--steps", type=click.IntRange(1), default=500, show_default=True, help="Steps that are measured.")
@click.option(
    "--scenario",
    "scenarios",
    type=click.Choice(get_args(Scenario)),
    multiple=True,
    default=get_args(Scenario),
    show_default=True,
    help="What the requests do; may be repeated.",
)
@json_option
def command(requests: tuple[int, ...], steps: int, scenarios: tuple[Scenario, ...], json_path: Path | None) -> int:
    """Time the host's part of a step: scheduler, batch, inputs, sampling, around a model that computes nothing.

    decode: every request gets a token a step. crowded: the same with room for a quarter of them. turnover: all enter
    and end in one step. Microseconds, the median and the 99th percentile.
    """
    found: list[StepResult] = []
    for scenario in scenarios:
        found += [measure_steps(scenario, count, steps) for count in requests]
    parts = get_args(Part)
    rows = [("SCENARIO", "REQUESTS", *(f"{part} us" for part in parts), "PREEMPTIONS")]
    for result in found:
        cells = [f"{result.parts[part].median * 1e6:.0f} ({result.parts[part].p99 * 1e6:.0f})" for part in parts]
        rows.append((result.scenario, str(result.num_requests), *cells, str(result.num_preemptions)))
    print_table(rows, num_labels=1)
    save(json_path, {"benchmark": "step", "provenance": this_provenance(), "results": found})
    return 0
