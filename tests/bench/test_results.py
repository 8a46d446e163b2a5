"""Statistics over runs, the baseline file, plots, and where figures say that they come from."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engined.bench.answer import Answer
from engined.bench.baseline import Baseline, read_baseline, write_baseline
from engined.bench.measures import Measure, RunResult, measure
from engined.bench.plot import length_chart, load_chart, plot_format, write_plot
from engined.bench.provenance import hide_keys, provenance
from engined.bench.rounds import RunRecord, Summary, ratios, summarise
from engined.bench.summary import Spread, quantile
from engined.errors import ConfigError


def record(round: int, server: str, tokens_per_second: float, tpot: float = 0.01) -> RunRecord:
    return RunRecord(
        round=round,
        point="c=1",
        server=server,
        measures={Measure.TOKENS_PER_SECOND: tokens_per_second, Measure.TPOT_P50: tpot},
        num_requests=4,
        errors=[],
        seconds=1.0,
        client_cpu=0.1,
    )


def test_quantiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([3.0], 0.99)) == (51.0, 100.0, 3.0)


def test_measures_of_a_run() -> None:
    answers = [
        Answer(started=0.0, ended=3.0, token_times=[1.0, 2.0, 3.0], num_tokens=3),
        Answer(started=1.0, ended=7.0, token_times=[3.0, 7.0], num_tokens=2),
        Answer(started=0.0, ended=9.0, error="no end after 9 s"),
    ]
    result = RunResult(answers=answers, disturbing=[], seconds=10.0, client_cpu=0.0)
    assert result.errors == ["no end after 9 s"]
    assert measure(result) == {
        Measure.TTFT_P50: 2.0,
        Measure.TTFT_P99: 2.0,
        Measure.TPOT_P50: 4.0,
        Measure.ITL_P50: 1.0,
        Measure.ITL_P99: 4.0,
        Measure.TOKENS_PER_SECOND: 0.5,
        Measure.REQUESTS_PER_SECOND: 0.2,
    }


def test_ratios_compare_runs_of_the_same_round() -> None:
    """The machine was twice as slow in the second round, and nobody should see it in the ratio."""
    records = [record(0, "a", 20.0), record(0, "b", 10.0), record(1, "b", 5.0), record(1, "a", 10.0)]
    assert summarise(records)["c=1"]["a"][Measure.TOKENS_PER_SECOND] == Spread(median=15.0, minimum=10.0, maximum=20.0)
    compared = ratios(records, "a")
    assert list(compared["c=1"]) == ["b"]
    assert compared["c=1"]["b"][Measure.TOKENS_PER_SECOND] == Spread(median=2.0, minimum=2.0, maximum=2.0)


def test_a_baseline_keeps_the_entries_of_other_workloads(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    old, new, other = (
        Baseline(
            command=f"engined bench {name}", server="a", ratios=ratios([record(0, "a", 2.0), record(0, "b", 1.0)], "a")
        )
        for name in ("old", "new", "other")
    )
    write_baseline(path, "w1", old)
    write_baseline(path, "w8", other)
    write_baseline(path, "w1", new)
    assert read_baseline(path) == {"w1": new, "w8": other}
    path.write_text('{"w1": {"seconds": 3}}')
    with pytest.raises(ConfigError, match="is no baseline"):
        write_baseline(path, "w1", new)
    assert path.read_text() == '{"w1": {"seconds": 3}}'


@pytest.fixture
def summary() -> Summary:
    records = [record(0, "a & b", 100.0, 0.01), record(0, "peer", 50.0, 0.02)]
    return summarise([*records, *(RunRecord(**{**as_fields(each), "point": "c=8"}) for each in records)])


def as_fields(record: RunRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in RunRecord.__dataclass_fields__}


def test_a_plot_has_a_curve_for_each_server_and_a_dot_for_each_point(tmp_path: Path, summary: Summary) -> None:
    path = tmp_path / "plot.svg"
    write_plot(path, load_chart("title", summary))
    tree = ElementTree.parse(path)
    tags = [element.tag.rpartition("}")[2] for element in tree.iter()]
    texts = [element.text for element in tree.iter() if element.text and element.text.strip()]
    assert (tags.count("polyline"), tags.count("circle")) == (2, 4)
    assert {"title", "a & b", "peer", "c=1", "c=8"} <= set(texts)
    places = {(float(each.get("cx", "")), float(each.get("cy", ""))) for each in tree.iter() if each.get("cx")}
    (slow_x, slow_y), (fast_x, fast_y) = max(places), min(places)
    assert slow_x > fast_x and slow_y > fast_y, "SVG counts downwards"


def test_a_plot_over_the_length_of_prompts(summary: Summary) -> None:
    chart = length_chart("title", summary, {"c=1": 16, "c=8": 4000}, "tpot")
    assert [[(dot.x, dot.y) for dot in curve.dots] for curve in chart.curves] == [
        [(16, 10.0), (4000, 10.0)],
        [(16, 20.0), (4000, 20.0)],
    ]
    assert (chart.x_title, chart.y_title) == ("prompt tokens", "time per output token (TPOT), ms")


def test_png_takes_matplotlib(tmp_path: Path, summary: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="`pip install matplotlib`, or give a name in .svg"):
        plot_format(tmp_path / "plot.png")


def test_png_where_matplotlib_is(tmp_path: Path, summary: Summary) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    write_plot(path, load_chart("title", summary))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_results_say_where_they_come_from() -> None:
    found = provenance(["bench", "serve", "--server", "a=unix:/run/x y"])
    assert found.command == "engined bench serve --server 'a=unix:/run/x y'"
    assert found.machine.num_cpus >= 1 and found.machine.cpu_model and found.machine.memory > 1 << 28
    assert set(found.versions) == {"engined", "torch", "python"}
    assert found.revision is None or len(found.revision.commit) == 40


def test_keys_are_not_published() -> None:
    arguments = ["bench", "--api-key", "secret", "--api-key=secret", "-c", "1"]
    assert hide_keys(arguments) == ["bench", "--api-key", "...", "--api-key=...", "-c", "1"]
