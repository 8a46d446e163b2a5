"""Hours of mixed load in minutes to see what grows: `python -m tests.benchmarks.soak [--minutes 10]`, and ten minutes
of it as a test, `pytest -n 0 -m soak`.

A daemon with a tiny model gets streams and whole answers, some of which are dropped by their client half way,
chat-like repeated prompts, requests that are refused, and probes. At the end, and at rest, it must be as it was after
the warm-up: descriptors (sockets among them), threads, processes and shared memory equal, no request or KV block left,
and RSS nearly as it was at rest half way. The warm-up brings what is bounded to its bound: prompts of all lengths, for
code is compiled for numbers of rows, and of different text, until the prefix cache is full.
Prints a line a minute and the verdict; exit code 1 if something has grown.
"""

import argparse
import contextlib
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tests.end_to_end.server import title
from tests.reliability import tiny_model
from tests.reliability.clients import OpenRequest, probe
from tests.reliability.daemon import Daemon, daemon
from tests.reliability.test_connections import resident

NUM_CLIENTS = 8
WARM_UP_SECONDS = 120.0
PROBE_TIMEOUT = 10.0
"""The machine has other things to do; what matters here is that an answer comes."""
REST_SECONDS = 5.0
MAX_RSS_SLOPE = 1 << 20
"""Bytes in ten minutes, of all processes together, from rest to rest."""
PROMPT_LENGTHS = range(1, tiny_model.CONTEXT - 1, 15)
"""Of the warm-up. Their sum is more than the KV cache holds."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What could grow, over all processes of the daemon."""

    processes: int
    threads: int
    fds: Counter[str]
    """By process and kind."""
    rss: int
    num_shm: int

    @classmethod
    def of(cls, harmed: Daemon) -> "Sizes":
        pids = harmed.note_pids()
        threads = sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids)
        shm = len(list(Path("/dev/shm").iterdir()))
        return cls(len(pids), threads, Counter(chain(*map(descriptors, pids))), sum(map(resident, pids)), shm)

    def line(self) -> str:
        """For a reader."""
        return (
            f"{self.processes} processes, {self.threads} threads, {self.fds.total()} descriptors, "
            f"{self.num_shm} shared memory, RSS {self.rss >> 10} KiB"
        )


def descriptors(pid: int) -> list[str]:
    """What a process has open: its title and, for each descriptor, what that is."""
    kinds = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kinds.append(f"{title(pid)} {re.sub(r'[0-9]+', 'N', os.readlink(entry))}")
    return kinds


class Load:
    """Clients that go on until they are told to stop."""

    def __init__(self, port: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(NUM_CLIENTS)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each client finish its request."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        choice = random.Random(seed)
        while not self._stop.is_set():
            self.outcomes[self._one(choice)] += 1

    def _one(self, choice: random.Random) -> str:
        what = choice.random()
        if what < 0.1:
            return f"probe {probe(self._port, timeout=PROBE_TIMEOUT)}"
        prompt = f"conversation {choice.randrange(20)} " * choice.randrange(1, 12)
        tokens = -1 if what < 0.15 else choice.randrange(1, 60)
        request = OpenRequest(self._port, stream=choice.random() < 0.6, max_tokens=tokens, prompt=prompt)
        if what > 0.8:
            time.sleep(choice.random() * 0.1)
            request.close()
        request.join(60)
        if tokens < 0:
            return f"refused {request.status}"
        if what > 0.8:
            return "dropped"
        return request.endings[0] if len(request.endings) == 1 else f"ended {len(request.endings)} times"


def settle(harmed: Daemon) -> Sizes:
    """What there is at rest."""
    harmed.server.wait_for_metric("engined:num_requests_running", 0, timeout=30)
    assert harmed.server.metric("engined:kv_cache_usage_perc") == 0, "KV blocks are left"
    # The connections of these questions are closed, and memory is given back, a moment later.
    time.sleep(REST_SECONDS)
    print("at rest:", {title(pid): f"{resident(pid) >> 10} KiB" for pid in harmed.note_pids()}, flush=True)
    return Sizes.of(harmed)


def warm_up(harmed: Daemon) -> None:
    """Let everything that is bounded reach its bound."""
    for length in PROMPT_LENGTHS:
        OpenRequest(harmed.port, stream=False, max_tokens=1, prompt=(f"{length:4d} " * length)[:length]).join()
    run_load(harmed, WARM_UP_SECONDS)


def run_load(harmed: Daemon, seconds: float) -> Counter[str]:
    """Load for so long, with a line a minute."""
    load = Load(harmed.port)
    load.start()
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 60.0))
        print(f"{load.outcomes.total():7d} requests, {Sizes.of(harmed).line()}", flush=True)
    load.stop()
    return load.outcomes


def soak(folder: Path, minutes: float) -> list[str]:
    """Run it; what has grown, or went wrong."""
    model = tiny_model.make(folder / "model")
    with daemon(model, folder) as harmed:
        harmed.wait_ready()
        pids = {title(pid): pid for pid in harmed.note_pids()}
        warm_up(harmed)
        before = settle(harmed)
        outcomes = run_load(harmed, minutes * 30)
        half_way = settle(harmed)
        outcomes += run_load(harmed, minutes * 30)
        after = settle(harmed)
        same = {title(pid): pid for pid in harmed.note_pids()} == pids
    slope = (after.rss - half_way.rss) / (minutes / 2) * 10
    print(f"{outcomes.total()} requests: {dict(sorted(outcomes.items()))}")
    print(f"before   {before.line()}\nhalf way {half_way.line()}\nafter    {after.line()}")
    print(f"RSS slope {slope / 1024:.0f} KiB in 10 minutes")
    known = ("length", "dropped", "refused 400", "probe 200")
    problems = [f"{count} x {name}" for name, count in outcomes.items() if name not in known]
    problems += [
        f"{name}: {getattr(before, name)} before, {getattr(after, name)} after"
        for name in ("processes", "threads", "num_shm")
        if getattr(before, name) != getattr(after, name)
    ]
    problems += [f"descriptors of {name} more than before" for name in (after.fds - before.fds)]
    problems += [f"descriptors of {name} fewer than before" for name in (before.fds - after.fds)]
    if not same:
        problems.append("a process is another one")
    if slope > MAX_RSS_SLOPE:
        problems.append(f"RSS grows by {slope / 1024:.0f} KiB in 10 minutes")
    return problems


def main() -> int:
    """Run it; 1 if something has grown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engined-soak-") as folder:
        problems = soak(Path(folder), arguments.minutes)
    print("\n".join(problems) or "nothing has grown")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
