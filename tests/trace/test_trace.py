"""`--trace`: what a real daemon leaves in its trace, whatever happens to its processes."""

import json
import os
import signal
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engined.errors import ConfigError
from engined.trace.collect import collected_trace
from engined.trace.part_file import PartFile, part_paths
from tests.end_to_end.server import Server, running, title, wait_until_ready
from tests.reliability import tiny_model

FLAGS = ("--kv-cache-memory", "4MiB", "--num-threads", "1")
NUM_TOKENS = 40
ROUNDING = 0.002
"""Microseconds that a sum of two times, read as floats, may be off."""


@dataclass(frozen=True)
class Span:
    process: str
    pid: int
    track: str
    name: str
    start: float
    end: float
    arguments: dict[str, int]

    def holds(self, other: "Span") -> bool:
        return self.start - ROUNDING <= other.start and other.end <= self.end + ROUNDING


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("tiny") / "model")


def read(trace: Path) -> list[Span]:
    """The spans of a trace, in the order of their starts; those that hold others come before them."""
    events: list[dict[str, Any]] = json.loads(trace.read_text())
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = [
        Span(
            process=names[event["pid"], 0],
            pid=event["pid"],
            track=names[event["pid"], event["tid"]],
            name=event["name"],
            start=event["ts"],
            end=event["ts"] + event["dur"],
            arguments=event.get("args", {}),
        )
        for event in events
        if event["ph"] == "X"
    ]
    assert len(spans) + len(names) == len(events)
    return sorted(spans, key=lambda span: (span.start, -span.end))


def check_nesting(spans: list[Span]) -> None:
    """On each track, a span lies within the one around it, or begins after the one before it."""
    open_spans: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in spans:
        around = open_spans[span.pid, span.track]
        while around and around[-1].end <= span.start + ROUNDING:
            around.pop()
        assert not around or around[-1].holds(span), f"{span} sticks out of {around[-1]}"
        around.append(span)


def stream_together(server: Server, num_requests: int) -> None:
    body = {"prompt": "Hello", "max_tokens": NUM_TOKENS, "ignore_eos": True}
    clients = [threading.Thread(target=server.stream, args=("/v1/completions", body)) for _ in range(num_requests)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_all_processes_show_their_part_of_each_step(model: Path, tmp_path: Path, num_ranks: int) -> None:
    trace = tmp_path / "trace.json"
    before = time.monotonic_ns() / 1000
    with running(model, tmp_path, *FLAGS, "--trace", str(trace), "--tp", str(num_ranks)) as server:
        stream_together(server, 2)
        assert server.stop() == 0
    spans = read(trace)
    check_nesting(spans)
    assert spans[0].start > before and max(span.end for span in spans) < time.monotonic_ns() / 1000
    ranks = {"EngineCore 0"} if num_ranks == 1 else {"Worker_TP0", "Worker_TP1"}
    assert {span.process for span in spans} == {"frontend 0", "EngineCore 0"} | ranks
    assert part_paths(str(trace)) == []

    def spans_of(process: str, track: str, *names: str) -> list[Span]:
        return [
            span
            for span in spans
            if span.process == process and span.track.startswith(track) and (not names or span.name in names)
        ]

    steps = spans_of("EngineCore 0", "busy loop", "step")
    assert len(steps) >= NUM_TOKENS
    for step in steps:
        inside = [span for span in spans_of("EngineCore 0", "busy loop") if span is not step and step.holds(span)]
        assert [span.name for span in inside] == ["schedule", "prepare", "execute", "sample", "update"]
    first_send, *sends = spans_of("EngineCore 0", "output", "send")
    assert first_send.start < steps[0].start, "the greeting of the frontend: it may still be ending as the canary runs"
    assert all(step.start < send.start for step, send in zip(steps, sends, strict=True))

    step_ids = [span.arguments["step"] for span in spans_of("EngineCore 0", "busy loop", "execute")]
    for rank in ranks:
        [warm_up] = spans_of(rank, "worker", "warm up")
        executes = [span for span in spans_of(rank, "worker", "execute") if not warm_up.holds(span)]
        assert [span.arguments["step"] for span in executes] == step_ids
        for execute in executes:
            inside = [span for span in spans_of(rank, "worker") if span is not execute and execute.holds(span)]
            assert [span.name for span in inside] == ["apply", "build inputs", "forward", "logits"]
        samples = [span for span in spans_of(rank, "worker", "sample") if not warm_up.holds(span)]
        assert len(samples) == len(steps)

    frames = len(sends) - 1
    assert len(spans_of("frontend 0", "engine link", "receive")) == len(sends)
    assert len(spans_of("frontend 0", "engine outputs", "detokenize")) == frames, "the first one was the canary's"
    assert len(spans_of("frontend 0", "tokenize", "tokenize")) == 2
    requests = spans_of("frontend 0", "request", "request")
    assert len(requests) == 2
    for request in requests:
        of_request = [span for span in spans if span.track == request.track and request.holds(span)]
        names = [span.name for span in of_request if span is not request]
        assert set(names) == {"format", "write"} and names[0] == "format" and names[-1] == "write"
        assert all(before == "format" for before, name in pairwise(names) if name == "write")


def test_the_spans_of_a_killed_engine_stay(model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    with running(model, tmp_path, *FLAGS, "--trace", str(trace)) as server:
        stream_together(server, 1)
        [killed] = [pid for pid in server.processes() if "EngineCore" in title(pid)]
        part = Path(f"{trace}.{killed}.part")
        while '"name":"step"' not in part.read_text():
            time.sleep(0.01)
        os.kill(killed, signal.SIGKILL)
        while server.get("/readyz")[0] == 200:
            time.sleep(0.01)
        wait_until_ready(server)
        stream_together(server, 1)
        server.stop()
    spans = read(trace)
    check_nesting(spans)
    pids = {span.pid for span in spans if span.process == "EngineCore 0" and span.name == "step"}
    assert killed in pids and len(pids) == 2


def test_half_a_line_is_left_out_and_an_earlier_trace_is_forgotten(tmp_path: Path) -> None:
    trace, part, earlier = tmp_path / "trace.json", tmp_path / "trace.json.7.part", tmp_path / "trace.json.8.part"
    earlier.write_text('{"name":"earlier"}\n')
    other = tmp_path / "trace.json.notes.part"
    other.write_text("not ours")
    with collected_trace(str(trace)):
        assert json.loads(trace.read_text()) == []
        part.write_text('{"name":"first"}\n{"name":"second"}\n{"na')
    assert [event["name"] for event in json.loads(trace.read_text())] == ["first", "second"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json", "trace.json.notes.part"]


def test_a_full_disk_ends_the_trace_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        part = PartFile(file, "a process")
        part.record((1, "span", 0, 1, {}))
        part.close()
    assert "the trace of this process ends here: No space left on device" in caplog.text


def test_a_trace_that_cannot_be_created_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "trace.json"
    with pytest.raises(ConfigError, match=f"--trace: cannot create {path}: No such file"), collected_trace(str(path)):
        pass
