"""Plots of throughput against latency: what is drawn, and into which kind of file. `svg` and `png` draw it."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from engined.bench.measures import Measure
from engined.bench.rounds import Summary
from engined.errors import ConfigError

PlotFormat = Literal["svg", "png"]
X_TITLE = "time per output token (TPOT), ms"
Y_TITLE = "output tokens per second"
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


def plot_format(path: Path) -> PlotFormat:
    """The format that a file's name asks for. Raises ConfigError if it cannot be written here."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in get_args(PlotFormat):
        raise ConfigError(f"--plot {path}: the name must end in .svg or .png")
    if suffix == "png" and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"--plot {path}: PNG takes matplotlib: `pip install matplotlib`, or give a name in .svg")
    return "png" if suffix == "png" else "svg"


def write_plot(path: Path, title: str, summary: Summary) -> None:
    """Draw the medians. Raises ConfigError as `plot_format` does, and OSError."""
    # Only the module of the format is loaded: matplotlib is not always there.
    draw: Callable[[str, list[Curve]], bytes] = importlib.import_module(f"engined.bench.{plot_format(path)}").draw
    path.write_bytes(draw(title, curves(summary)))


def curves(summary: Summary) -> list[Curve]:
    """A curve for each server, without the points where answers had a single token."""
    dots: dict[str, list[Dot]] = {}
    for label, of_point in summary.items():
        for server, measures in of_point.items():
            of_server = dots.setdefault(server, [])
            if Measure.TPOT_P50 in measures:
                x, y = measures[Measure.TPOT_P50].median * 1000, measures[Measure.TOKENS_PER_SECOND].median
                of_server.append(Dot(label=label, x=x, y=y))
    return [
        Curve(name=name, colour=COLOURS[index % len(COLOURS)], dots=of_server)
        for index, (name, of_server) in enumerate(dots.items())
    ]
