"""Draws curves as PNG with matplotlib. Imported only where that is installed; see `plot`."""

import io

from matplotlib.figure import Figure

from engined.bench.plot import Chart


def draw(chart: Chart) -> bytes:
    """The whole file."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(title=chart.title, xlabel=chart.x_title, ylabel=chart.y_title)
    for curve in chart.curves:
        axes.plot(
            [dot.x for dot in curve.dots], [dot.y for dot in curve.dots], "o-", color=curve.colour, label=curve.name
        )
        for dot in curve.dots:
            axes.annotate(dot.label, (dot.x, dot.y), xytext=(0, 7), textcoords="offset points", ha="center", size=8)
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()
