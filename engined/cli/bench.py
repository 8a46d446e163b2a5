"""`engined bench`: the group of benchmarks, each imported when it is called."""

import click

from engined.cli.lazy_group import LazyGroup

_BENCHMARKS = {
    "serve": ("engined.cli.bench_serve", "Put load on servers, in turn, and compare them."),
    "step": ("engined.cli.bench_step", "Time the host's part of a step, without a model."),
    "stream": ("engined.cli.bench_stream", "Time the frontend's part of streaming, without an engine."),
    "startup": ("engined.cli.bench_startup", "Time the start of `engined serve`, and weigh its processes."),
}


@click.group("bench", cls=LazyGroup, modules=_BENCHMARKS, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Measure servers, and the parts of this one. Results carry the machine, versions, git revision and command."""
