"""Draws curves as SVG, without a library: two axes from zero, a line and labelled dots for each server, a legend."""

import math
from collections.abc import Sequence
from html import escape

from engined.bench.plot import Chart, Curve

_WIDTH, _HEIGHT = 800, 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 30, 50, 60
_HEADROOM = 1.08
_NUM_TICKS = 6
_GREY = "#888888"


def draw(chart: Chart) -> bytes:
    """The whole file."""
    curves = chart.curves
    dots = [dot for curve in curves for dot in curve.dots]
    x_axis = _Axis([dot.x for dot in dots], _LEFT, _WIDTH - _RIGHT)
    y_axis = _Axis([dot.y for dot in dots], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 24, chart.title, size=16),
        *_frame(x_axis, y_axis, chart),
        *(part for curve in curves for part in _curve(curve, x_axis, y_axis)),
        *(part for index, curve in enumerate(curves) for part in _legend(curve, index)),
        "</svg>\n",
    ]
    return "\n".join(parts).encode()


class _Axis:
    """From values to pixels, from zero on."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        highest = max(values, default=0.0) or 1.0
        self._begin = begin
        self._pixels_per_unit = (end - begin) / (highest * _HEADROOM)
        step = _nice_step(highest / _NUM_TICKS)
        self.ticks = [index * step for index in range(math.floor(highest * _HEADROOM / step) + 1)]

    def place(self, value: float) -> float:
        return self._begin + value * self._pixels_per_unit


def _nice_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _frame(x_axis: _Axis, y_axis: _Axis, chart: Chart) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for tick in x_axis.ticks:
        x = x_axis.place(tick)
        parts += [_line(x, _TOP, x, bottom, _GREY, 0.3), _text(x, bottom + 18, f"{tick:g}")]
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        parts += [_line(_LEFT, y, right, y, _GREY, 0.3), _text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end")]
    middle = (_TOP + bottom) / 2
    return [
        *parts,
        _line(_LEFT, bottom, right, bottom, "black", 1),
        _line(_LEFT, _TOP, _LEFT, bottom, "black", 1),
        _text((_LEFT + right) / 2, _HEIGHT - 16, chart.x_title),
        f'<g transform="rotate(-90 20 {middle:.1f})">{_text(20, middle, chart.y_title)}</g>',
    ]


def _curve(curve: Curve, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    places = [(x_axis.place(dot.x), y_axis.place(dot.y), dot.label) for dot in curve.dots]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{curve.colour}" stroke-width="2"/>']
    for x, y, label in places:
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{curve.colour}"/>')
        parts.append(_text(x, y - 9, label, size=11))
    return parts


def _legend(curve: Curve, index: int) -> list[str]:
    y = _TOP + 14 + 20 * index
    return [
        _line(_LEFT + 12, y, _LEFT + 36, y, curve.colour, 2),
        _text(_LEFT + 44, y + 4, curve.name, anchor="start"),
    ]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
