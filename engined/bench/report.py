"""The results of `bench serve` as tables and as one document. No IO."""

from collections.abc import Sequence
from dataclasses import asdict

from engined.bench.measures import Measure
from engined.bench.provenance import Provenance
from engined.bench.rounds import RunRecord, Summary, ratios, summarise
from engined.bench.server import Server
from engined.bench.workload import Workload

_COLUMNS: dict[Measure, tuple[str, float, int]] = {
    Measure.TTFT_P50: ("TTFT ms", 1000, 1),
    Measure.TTFT_P99: ("TTFT p99", 1000, 1),
    Measure.TPOT_P50: ("TPOT ms", 1000, 2),
    Measure.ITL_P50: ("ITL ms", 1000, 2),
    Measure.ITL_P99: ("ITL p99", 1000, 1),
    Measure.TOKENS_PER_SECOND: ("tokens/s", 1, 1),
    Measure.REQUESTS_PER_SECOND: ("req/s", 1, 2),
    Measure.DISTURBANCE_TTFT_P50: ("intruder TTFT ms", 1000, 1),
}
"""Heading, what a value is multiplied by, and decimals."""
_RATIO_DIGITS = 2


def result_rows(summary: Summary) -> list[Sequence[str]]:
    """A table: medians with minimum and maximum, a row for each point and server."""
    scales = {name: (scale, digits) for name, (_, scale, digits) in _COLUMNS.items()}
    return _rows(summary, scales)


def ratio_rows(summary: Summary) -> list[Sequence[str]]:
    """The same for ratios."""
    return _rows(summary, dict.fromkeys(_COLUMNS, (1.0, _RATIO_DIGITS)))


def results(
    provenance: Provenance,
    workload: Workload,
    servers: Sequence[tuple[Server, str | None]],
    seed: int,
    records: Sequence[RunRecord],
) -> dict[str, object]:
    """Everything, for a JSON file: where it comes from, what was asked of whom (and how each was started), all runs."""
    return {
        "benchmark": "serve",
        "provenance": provenance,
        "workload": {"kind": type(workload).__name__, **asdict(workload)},
        "seed": seed,
        "servers": [
            {"name": server.name, "url": server.url, "model": server.model, "command": command}
            for server, command in servers
        ],
        "summary": summarise(records),
        "ratios": ratios(records, servers[0][0].name),
        "runs": records,
    }


def _rows(summary: Summary, scales: dict[Measure, tuple[float, int]]) -> list[Sequence[str]]:
    present = {name for of_point in summary.values() for measures in of_point.values() for name in measures}
    shown = [name for name in _COLUMNS if name in present]
    rows: list[Sequence[str]] = [("LOAD", "SERVER", *(_COLUMNS[name][0] for name in shown))]
    for point, of_point in summary.items():
        for server, measures in of_point.items():
            cells = [
                measures[name].scaled(scales[name][0]).show(scales[name][1]) if name in measures else "-"
                for name in shown
            ]
            rows.append((point, server, *cells))
    return rows
