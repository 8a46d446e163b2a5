"""`engined bench serve` against a real server: every kind of load, the files it writes, its answers to mistakes."""

import asyncio
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engined.bench.measures import Measure, measure
from engined.bench.rounds import find_models
from engined.bench.run import RunOptions, run
from engined.bench.server import Server, parse_server
from engined.bench.workload import (
    ClosedLoop,
    Conversations,
    Disturbance,
    Disturbed,
    LogNormal,
    OpenLoop,
    Workload,
    points,
)
from engined.cli.main import main
from engined.errors import BenchError
from tests.end_to_end.server import Server as Daemon

OPTIONS = RunOptions(vocab_size=49_000, timeout=300)
SMALL: dict[str, tuple[Workload, int]] = {
    "closed loop": (ClosedLoop(concurrency=(2,), num_requests=3, prefix=20, input=8, output=5), 3),
    "schema": (ClosedLoop(concurrency=(2,), num_requests=2, input=0, output=6, has_schema=True), 2),
    "open loop": (
        OpenLoop(
            rate=(20.0,),
            num_requests=4,
            input=LogNormal(median=8, sigma=1, maximum=20),
            output=LogNormal(median=5, sigma=0.5, maximum=8),
        ),
        4,
    ),
    "bursts": (OpenLoop(rate=(20.0,), num_requests=4, burst=2, input=8, output=5), 4),
    "conversations": (Conversations(concurrency=(2,), num_turns=3, prefix=40, input=8, output=5), 6),
}
"""Workloads, and how many answers each has."""


@pytest.fixture(scope="module")
def server(default_server: Daemon) -> Server:
    """The daemon as one that is to be measured."""
    [found] = asyncio.run(find_models([parse_server(f"engined={default_server.url}", None)], 60))
    return found


@pytest.mark.parametrize("name", SMALL)
def test_every_kind_of_load_gets_its_answers(server: Server, name: str) -> None:
    workload, num_answers = SMALL[name]
    [point] = points(workload)
    result = asyncio.run(run(server, point, f"{name} of this test", OPTIONS))
    assert result.errors == []
    assert len(result.answers) == num_answers
    lengths = {answer.num_tokens for answer in result.answers}
    assert lengths == {workload.output} if isinstance(workload.output, int) else max(lengths) <= 8
    measures = measure(result)
    assert set(measures) >= {Measure.TTFT_P50, Measure.TPOT_P50, Measure.ITL_P99, Measure.TOKENS_PER_SECOND}
    assert all(value > 0 for name, value in measures.items() if name is not Measure.ITL_P50)


def test_conversations_continue_what_the_server_generated(server: Server, default_server: Daemon) -> None:
    """Then all but the last, partly filled block of each turn is in the prefix cache at the next one."""
    [point] = points(Conversations(concurrency=(1,), num_turns=3, prefix=0, input=32, output=32))
    before = default_server.metric("engined:prefix_cache_hits_total")
    asyncio.run(run(server, point, "a conversation of this test", OPTIONS))
    assert default_server.metric("engined:prefix_cache_hits_total") - before >= 48 + 112


def test_disturbing_requests_come_beside_the_measured_ones(server: Server) -> None:
    disturbance = Disturbance(interval=0.25, input=30, output=1)
    [point] = points(Disturbed(concurrency=(2,), input=8, output=200, disturbance=disturbance))
    result = asyncio.run(run(server, point, "disturbed by this test", OPTIONS))
    assert result.errors == []
    assert [answer.num_tokens for answer in result.answers] == [200, 200]
    assert {answer.num_tokens for answer in result.disturbing} == {1}
    assert Measure.DISTURBANCE_TTFT_P50 in measure(result)


def test_cancelled_requests_leave_the_server_with_none(server: Server, default_server: Daemon) -> None:
    disturbance = Disturbance(interval=0.25, input=8, output=1000, is_cancelled=True)
    [point] = points(Disturbed(concurrency=(1,), input=8, output=200, disturbance=disturbance))
    result = asyncio.run(run(server, point, "cancelled by this test", OPTIONS))
    assert result.errors == []
    assert len(result.disturbing) > 0
    default_server.wait_for_metric("engined:num_requests_running", 0)


def test_two_names_of_a_server_are_compared(
    default_server: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("results.json", "plot.svg", "baseline.json")}
    flags = ["--server", f"tcp={default_server.url}", "--server", f"uds=unix:{default_server.uds}"]
    flags += ["--started-by", "uds=engined serve", "-c", "1,2", "-n", "2", "--input", "8", "--output", "4"]
    flags += ["--rounds", "2", "--seed", "3", "--api-key", "secret", "--json", str(files["results.json"])]
    flags += ["--plot", str(files["plot.svg"]), "--baseline", str(files["baseline.json"]), "--name", "short"]
    assert main(["bench", "serve", *flags]) == 0

    table = capsys.readouterr().out
    assert [line.split()[:2] for line in table.splitlines() if line.startswith("c=")] == [
        ["c=1", "tcp"],
        ["c=1", "uds"],
        ["c=2", "tcp"],
        ["c=2", "uds"],
        ["c=1", "uds"],
        ["c=2", "uds"],
    ]
    results = json.loads(files["results.json"].read_text())
    assert [server["command"] for server in results["servers"]] == [None, "engined serve"]
    order = [(each["round"], each["point"], each["server"]) for each in results["runs"]]
    assert order == [
        *((0, "c=1", "tcp"), (0, "c=1", "uds"), (0, "c=2", "tcp"), (0, "c=2", "uds")),
        *((1, "c=1", "uds"), (1, "c=1", "tcp"), (1, "c=2", "uds"), (1, "c=2", "tcp")),
    ]
    assert results["seed"] == 3
    assert results["workload"] | {"kind": "ClosedLoop", "input": 8, "output": 4} == results["workload"]
    ElementTree.parse(files["plot.svg"])
    baseline = json.loads(files["baseline.json"].read_text())
    assert baseline["short"]["server"] == "tcp"
    assert baseline["short"]["ratios"]["c=2"]["uds"] == results["ratios"]["c=2"]["uds"]


def test_prompts_of_several_lengths_are_points_of_one_curve(
    default_server: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--server", f"engined=unix:{default_server.uds}", "--input", "8,32", "--output", "4", "--rounds", "1"]
    flags += ["-c", "2", "-n", "2", "--plot", str(tmp_path / "plot.svg"), "--plot-latency", "tpot"]
    assert main(["bench", "serve", *flags]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith("c=")]
    assert rows == [["c=2", "in=8"], ["c=2", "in=32"]]
    assert {"prompt tokens", "c=2 in=8", "c=2 in=32"} <= set(
        ElementTree.parse(tmp_path / "plot.svg").getroot().itertext()
    )


def test_a_request_that_the_server_refuses_ends_the_run_with_its_reason(server: Server) -> None:
    """The warm-up is the first to fail: this prompt is longer than the context."""
    [point] = points(ClosedLoop(concurrency=(1,), input=9000, output=1))
    with pytest.raises(BenchError, match="engined: the request to warm up failed: status 400: .*8192"):
        asyncio.run(run(server, point, "too long", OPTIONS))


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--server", "a=http://127.0.0.1:1"], 69, "no server answers at http://127.0.0.1:1 (a): "),
        (["--server", "a=unix:/nowhere.sock"], 69, "no server answers at unix:/nowhere.sock (a): No such file"),
        ([], 2, "Missing option '--server'"),
        (["--server", "nowhere"], 2, "--server nowhere: write NAME=URL"),
        (["--server", "a=https://localhost"], 2, "'https://localhost' is neither http://HOST:PORT nor unix:PATH"),
        (["--server", "a=unix:/x", "--server", "a=unix:/y"], 2, "two servers have the same name"),
        (["--server", "a=unix:/x", "-c", "1,x"], 2, "'1,x' is not a list of numbers"),
        (["--server", "a=unix:/x", "-c", "0"], 2, "'0': every number must be above 0"),
        (["--server", "a=unix:/x", "-c", "1", "--rate", "2"], 2, "--rate and --concurrency exclude each other"),
        (["--server", "a=unix:/x", "--workload", "w5", "--rate", "2"], 2, "--rate means nothing to this workload"),
        (["--server", "a=unix:/x", "--input", "8,16", "--rate", "2"], 2, "--input: several lengths go with neither"),
        (["--server", "a=unix:/x", "--input", "8", "--plot-latency", "tpot"], 2, "--plot-latency means nothing"),
        (["--server", "a=unix:/x", "--baseline", "b.json"], 2, "--baseline: ratios take two servers"),
        (["--server", "a=unix:/x", "--plot", "p.gif"], 2, "--plot p.gif: the name must end in .svg or .png"),
        (["--server", "a=unix:/x", "--started-by", "b=run"], 2, "write NAME=COMMAND with the NAME of a --server"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    flags: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *flags]) == code
    assert message in capsys.readouterr().err.splitlines()[-1]
