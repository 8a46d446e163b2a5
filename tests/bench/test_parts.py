"""The benchmarks of the parts, once each and small: a step, a stream, a start. They run the real thing."""

import json
from pathlib import Path

import pytest

from engined.cli.main import main


def test_step_runs_every_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    assert main(["bench", "step", "--requests", "1,8", "--steps", "60", "--json", str(path)]) == 0
    results = json.loads(path.read_text())["results"]
    assert [(each["scenario"], each["num_requests"]) for each in results] == [
        (scenario, count) for scenario in ("decode", "crowded", "turnover") for count in (1, 8)
    ]
    for result in results:
        parts = {name: times["median"] for name, times in result["parts"].items()}
        assert set(parts) == {"schedule", "prepare", "sample", "update", "step"}
        assert 0 < max(value for name, value in parts.items() if name != "step") <= parts["step"]
    preemptions = {(each["scenario"], each["num_requests"]): each["num_preemptions"] for each in results}
    assert preemptions["crowded", 8] > 0 and preemptions["decode", 8] == 0
    assert len(capsys.readouterr().out.splitlines()) == 7


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_stream_measures_a_real_frontend(route: str, default_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "stream.json"
    flags = ["--model", str(default_gguf), "-c", "1,4", "--output", "40", "--rounds", "2", "--route", route]
    assert main(["bench", "stream", *flags, "--json", str(path)]) == 0
    results = json.loads(path.read_text())["results"]
    assert [each["num_clients"] for each in results] == [1, 4]
    for result in results:
        assert result["tokens_per_second"]["minimum"] > 0
        assert result["tokens_per_cpu_second"]["minimum"] > 0
        assert 0 < result["events_per_token"]["maximum"] <= 42 / 40


def test_startup_weighs_a_daemon_that_answered(default_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "startup.json"
    arguments = ["-n", "1", "--json", str(path), "--", str(default_gguf), "--kv-cache-memory", "64MiB"]
    assert main(["bench", "startup", *arguments]) == 0
    [start] = json.loads(path.read_text())["starts"]
    assert 0 < start["ready"] < start["first_token"]
    assert 100 << 20 < start["pss"] <= start["rss"]


def test_startup_says_why_a_daemon_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "--", str(tmp_path / "nothing")]) == 66
    assert "there is no file or folder" in capsys.readouterr().err.splitlines()[-1]


def test_startup_has_sockets_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "--", "--uds=/run/x"]) == 2
    assert "--uds=/run/x: each start has a socket and data of its own" in capsys.readouterr().err
