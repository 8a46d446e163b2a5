"""`engined bench serve`."""

import asyncio
import resource
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from engined.bench.baseline import Baseline, read_baseline, write_baseline
from engined.bench.plot import Chart, Latency, length_chart, load_chart, plot_format, write_plot
from engined.bench.report import ratio_rows, result_rows, results
from engined.bench.rounds import RunRecord, find_models, ratios, run_rounds, summarise
from engined.bench.run import RunOptions
from engined.bench.server import Server, parse_server
from engined.bench.workload import WORKLOADS, ClosedLoop, OpenLoop, Workload, override, points
from engined.cli.bench_options import json_option, number_list, print_table, save, this_provenance
from engined.errors import BenchError, ConfigError

_DEFAULT_CONCURRENCY = (1, 8, 32)
_DEFAULT_NUM_REQUESTS = 60
_DEFAULT_LENGTH = 128
_SHAPE_FLAGS = ("concurrency", "rate", "num_requests", "input", "output", "prefix")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """Where results go, besides stdout."""

    json_path: Path | None
    plot_path: Path | None
    baseline_path: Path | None

    def check(self, num_servers: int) -> None:
        """Raises ConfigError for what could not be written, before anything is measured."""
        if self.plot_path is not None:
            plot_format(self.plot_path)
        if self.baseline_path is not None:
            if num_servers < 2:
                raise ConfigError("--baseline: ratios take two servers: give another --server")
            if self.baseline_path.exists():
                read_baseline(self.baseline_path)


@click.command("serve")
@click.option(
    "--server",
    "servers",
    multiple=True,
    required=True,
    metavar="NAME=URL[,MODEL]",
    help="A server to measure, for example engined=unix:/run/engined/engined.sock or peer=http://127.0.0.1:8080; "
    "'unix:' alone is this user's daemon. Repeat it for several; ratios are those of the first to the others. "
    "Default of MODEL: the first that the server lists.",
)
@click.option(
    "--started-by",
    "commands",
    multiple=True,
    metavar="NAME=COMMAND",
    help="The command line that started server NAME, for the results; may be repeated.",
)
@click.option("--workload", type=click.Choice(list(WORKLOADS)), help="A load by name; other flags change its values.")
@click.option(
    "-c",
    "--concurrency",
    callback=number_list(int),
    metavar="N[,N...]",
    help=f"Clients at once, each a measured point. Default: {','.join(map(str, _DEFAULT_CONCURRENCY))}.",
)
@click.option("--rate", callback=number_list(float), metavar="R[,R...]", help="Instead: Poisson arrivals per second.")
@click.option(
    "-n",
    "--num-requests",
    type=click.IntRange(1),
    metavar="N",
    help=f"Requests of a run. Default: twice the clients, at least 4; with --rate {_DEFAULT_NUM_REQUESTS}.",
)
@click.option(
    "--input",
    callback=number_list(int),
    metavar="N[,N...]",
    help=f"Prompt tokens; several, each a measured point, without --rate and --workload. Default: {_DEFAULT_LENGTH}.",
)
@click.option("--output", type=click.IntRange(1), metavar="N", help=f"Output tokens. Default: {_DEFAULT_LENGTH}.")
@click.option("--prefix", type=click.IntRange(0), metavar="N", help="Tokens that all prompts of a run begin with.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Measure everything so often.")
@click.option(
    "--seed",
    type=int,
    help="What prompts and arrivals are drawn from. Default: a new one each time, so that no cache knows the prompts.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(1000),
    default=49_000,
    show_default=True,
    help="Token ids of prompts lie below it; every server's model must have them.",
)
@click.option("--timeout", type=click.FloatRange(1), default=300.0, show_default=True, help="Seconds for an answer.")
@click.option("--api-key", metavar="KEY", envvar="ENGINED_API_KEY", help="Key to send; also ENGINED_API_KEY.")
@json_option
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.svg|FILE.png",
    help="Draw throughput against latency; with several lengths of --input, latency against length. PNG takes "
    "matplotlib.",
)
@click.option(
    "--plot-latency",
    type=click.Choice(get_args(Latency)),
    help="What to draw against the length of --input. Default: ttft.",
)
@click.option(
    "--baseline",
    "baseline_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the ratios there, with this command; entries of other workloads stay.",
)
@click.option(
    "--name",
    "given_name",
    metavar="NAME",
    help='What the load is called in the plot and in the baseline. Default: the workload, or its lengths ("128/128").',
)
def command(**given: Any) -> int:
    """Put load on servers with an API like OpenAI's, and compare them.

    Servers take turns (A B, then B A), with the same random token ids, greedy, without end at EOS. A first request
    warms each run up. The table has medians over the rounds, with minimum and maximum. The exit code is 69 if a request
    failed; a baseline is not written then.
    """
    servers = [parse_server(text, given["api_key"]) for text in given["servers"]]
    if len({server.name for server in servers}) < len(servers):
        raise ConfigError("--server: two servers have the same name")
    commands = _read_commands(given["commands"], servers)
    shape = _read_shape(given)
    workload, called = _choose(given["workload"], shape)
    name = given["given_name"] or called
    if given["plot_latency"] is not None and (given["plot_path"] is None or "inputs" not in shape):
        raise ConfigError("--plot-latency means nothing without --plot and several lengths of --input: leave it out")
    files = _Files(json_path=given["json_path"], plot_path=given["plot_path"], baseline_path=given["baseline_path"])
    files.check(len(servers))
    seed = secrets.randbits(64) if given["seed"] is None else given["seed"]
    options = RunOptions(vocab_size=given["vocab_size"], timeout=given["timeout"])
    servers, records = asyncio.run(_measure(servers, workload, given["rounds"], seed, options))
    _print(records, servers[0].name)
    provenance = this_provenance()
    started = [(server, commands.get(server.name)) for server in servers]
    save(files.json_path, results(provenance, workload, started, seed, records))
    if files.plot_path is not None:
        title = f"{name}, median of {given['rounds']} rounds"
        write_plot(files.plot_path, _chart(title, workload, records, given["plot_latency"] or "ttft"))
    errors = [(record.server, error) for record in records for error in record.errors]
    if errors:
        server, error = errors[0]
        raise BenchError(f"{len(errors)} requests failed, the first of {server}: {error}")
    if files.baseline_path is not None:
        entry = Baseline(command=provenance.command, server=servers[0].name, ratios=ratios(records, servers[0].name))
        write_baseline(files.baseline_path, name, entry)
    return 0


async def _measure(
    servers: Sequence[Server], workload: Workload, num_rounds: int, seed: int, options: RunOptions
) -> tuple[list[Server], list[RunRecord]]:
    _allow_open_files()
    found = await find_models(servers, options.timeout)
    return found, await run_rounds(found, points(workload), num_rounds, seed, options, _report_progress)


def _allow_open_files() -> None:
    """A connection is an open file, and the usual limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read_shape(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of the workload that flags give. Raises ConfigError for lengths that cannot be points."""
    shape = {name: given[name] for name in _SHAPE_FLAGS if given[name] is not None}
    inputs: tuple[int, ...] = shape.pop("input", ())
    if len(inputs) > 1 and (given["workload"] is not None or "rate" in shape):
        raise ConfigError("--input: several lengths go with neither --workload nor --rate: give one")
    if len(inputs) == 1:
        return shape | {"input": inputs[0]}
    return shape | {"inputs": inputs} if inputs else shape


def _choose(name: str | None, shape: dict[str, Any]) -> tuple[Workload, str]:
    """The workload and what it is called. Raises ConfigError for flags that do not go together."""
    if name is not None:
        return override(WORKLOADS[name], shape), name
    if "rate" in shape and "concurrency" in shape:
        raise ConfigError("--rate and --concurrency exclude each other: arrivals wait for nobody")
    lengths: dict[str, Any] = {"input": _DEFAULT_LENGTH, "output": _DEFAULT_LENGTH}
    called_input = ",".join(map(str, shape["inputs"])) if "inputs" in shape else shape.get("input", _DEFAULT_LENGTH)
    called = f"{called_input}/{shape.get('output', _DEFAULT_LENGTH)}"
    if prefix := shape.get("prefix"):
        called = f"{prefix}+{called}"
    if "rate" in shape:
        return OpenLoop(**{"num_requests": _DEFAULT_NUM_REQUESTS} | lengths | shape), f"{called} open"
    return ClosedLoop(**{"concurrency": _DEFAULT_CONCURRENCY} | lengths | shape), called


def _chart(title: str, workload: Workload, records: Sequence[RunRecord], latency: Latency) -> Chart:
    lengths = {point.label: point.input for point in points(workload) if point.input is not None}
    if lengths:
        return length_chart(title, summarise(records), lengths, latency)
    return load_chart(title, summarise(records))


def _read_commands(texts: Sequence[str], servers: Sequence[Server]) -> dict[str, str]:
    """NAME=COMMAND as a table. Raises ConfigError for a name that is no server's."""
    commands: dict[str, str] = {}
    for text in texts:
        name, equals, started_by = text.partition("=")
        if not equals or name not in {server.name for server in servers}:
            raise ConfigError(f"--started-by {text}: write NAME=COMMAND with the NAME of a --server")
        commands[name] = started_by
    return commands


def _report_progress(record: RunRecord) -> None:
    failed = f", {len(record.errors)} FAILED" if record.errors else ""
    click.echo(
        f"round {record.round + 1}  {record.point}  {record.server}: {record.num_requests} requests in "
        f"{record.seconds:.1f} s{failed}",
        err=True,
    )


def _print(records: Sequence[RunRecord], first: str) -> None:
    print_table(result_rows(summarise(records)), num_labels=2)
    if compared := ratios(records, first):
        click.echo(f"\n{first} over the others")
        print_table(ratio_rows(compared), num_labels=2)
