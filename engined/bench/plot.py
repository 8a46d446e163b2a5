"""Plots of throughput against latency, or of latency against the length of prompts: what is drawn, and into which kind
of file. `svg` and `png` draw it."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from engined.bench.measures import Measure
from engined.bench.rounds import Measures, Summary
from engined.errors import ConfigError

PlotFormat = Literal["svg", "png"]
Latency = Literal["ttft", "tpot"]
_LATENCIES: dict[Latency, tuple[Measure, str]] = {
    "ttft": (Measure.TTFT_P50, "time to first token (TTFT), ms"),
    "tpot": (Measure.TPOT_P50, "time per output token (TPOT), ms"),
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by people who see colours differently, too; after Okabe and Ito."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A point of load."""

    label: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One server, from the least load to the most."""

    name: str
    colour: str
    dots: list[Dot]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All that is drawn; both axes begin at zero."""

    title: str
    x_title: str
    y_title: str
    curves: list[Curve]


def plot_format(path: Path) -> PlotFormat:
    """The format that a file's name asks for. Raises ConfigError if it cannot be written here."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in get_args(PlotFormat):
        raise ConfigError(f"--plot {path}: the name must end in .svg or .png")
    if suffix == "png" and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"--plot {path}: PNG takes matplotlib: `pip install matplotlib`, or give a name in .svg")
    return "png" if suffix == "png" else "svg"


def write_plot(path: Path, chart: Chart) -> None:
    """Raises ConfigError as `plot_format` does, and OSError."""
    # Only the module of the format is loaded: matplotlib is not always there.
    draw: Callable[[Chart], bytes] = importlib.import_module(f"engined.bench.{plot_format(path)}").draw
    path.write_bytes(draw(chart))


def load_chart(title: str, summary: Summary) -> Chart:
    """Median throughput against median latency, a dot for each load; without those whose answers had a single token."""
    measure, x_title = _LATENCIES["tpot"]

    def place(label: str, measures: Measures) -> tuple[float, float]:
        return measures[measure].median * 1000, measures[Measure.TOKENS_PER_SECOND].median

    return Chart(
        title=title, x_title=x_title, y_title="output tokens per second", curves=_curves(summary, measure, place)
    )


def length_chart(title: str, summary: Summary, lengths: Mapping[str, int], latency: Latency) -> Chart:
    """A median latency against the length of the prompt, which `lengths` gives for each point's label."""
    measure, y_title = _LATENCIES[latency]

    def place(label: str, measures: Measures) -> tuple[float, float]:
        return lengths[label], measures[measure].median * 1000

    return Chart(title=title, x_title="prompt tokens", y_title=y_title, curves=_curves(summary, measure, place))


def _curves(summary: Summary, needed: Measure, place: Callable[[str, Measures], tuple[float, float]]) -> list[Curve]:
    """A curve for each server, through the points that have the measure."""
    dots: dict[str, list[Dot]] = {}
    for label, of_point in summary.items():
        for server, measures in of_point.items():
            of_server = dots.setdefault(server, [])
            if needed in measures:
                x, y = place(label, measures)
                of_server.append(Dot(label=label, x=x, y=y))
    return [
        Curve(name=name, colour=COLOURS[index % len(COLOURS)], dots=of_server)
        for index, (name, of_server) in enumerate(dots.items())
    ]
