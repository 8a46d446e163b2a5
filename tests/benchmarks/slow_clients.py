"""What clients that do not read cost those that do: `python -m tests.benchmarks.slow_clients [--rounds 20]`.

A daemon with a tiny model generates for 4 streams, whose gaps between two pieces are measured, and for 10 others, which
in every second round read as well and in the others take nothing after their first answer, which is too large for the
kernel's buffers. Prints the median gap and the 99th percentile of both kinds of rounds, each of the round that the rest
of the machine disturbed least, and the ratio of the latter.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.reliability import tiny_model
from tests.reliability.daemon import Daemon, daemon

NUM_MEASURED = 4
NUM_OTHERS = 10
NUM_TOKENS = 400
OTHER: dict[str, Any] = {"prompt": "x" * 200, "prompt_logprobs": 20, "max_tokens": 1800}
"""Goes on for longer than a round takes."""
HEAD_START_SECONDS = 0.5
"""Until the first answers are written, as far as they can be."""


@dataclass(slots=True)
class Gaps:
    """Seconds between two pieces of a stream, in all rounds of one kind."""

    medians: list[float] = field(default_factory=list)
    p99s: list[float] = field(default_factory=list)

    def add(self, gaps: list[float]) -> None:
        """One more round."""
        self.medians.append(statistics.median(gaps))
        self.p99s.append(statistics.quantiles(gaps, n=100)[98])

    def line(self) -> str:
        """For a reader."""
        return f"median {min(self.medians) * 1000:.2f} ms, p99 {min(self.p99s) * 1000:.2f} ms"


async def ask(port: int, body: dict[str, Any], client: socket.socket) -> None:
    """Send the request of a stream."""
    loop = asyncio.get_running_loop()
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", port))
    data = json.dumps(body | {"stream": True, "ignore_eos": True, "temperature": 0}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    await loop.sock_sendall(client, f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)


async def take_all(client: socket.socket) -> None:
    """Read as a client that has nothing else to do."""
    while await asyncio.get_running_loop().sock_recv(client, 1 << 16):
        pass


@contextlib.asynccontextmanager
async def others(port: int, *, are_reading: bool) -> AsyncIterator[None]:
    """Ten clients beside those that are measured."""
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        reading = []
        for _ in range(NUM_OTHERS):
            client = stack.enter_context(socket.socket())
            if not are_reading:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            await ask(port, OTHER, client)
            if are_reading:
                reading.append(tasks.create_task(take_all(client)))
        yield
        for task in reading:
            task.cancel()


async def measure(port: int) -> list[float]:
    """The gaps of one stream."""
    times: list[float] = []
    with socket.socket() as client:
        await ask(port, {"prompt": "hello", "max_tokens": NUM_TOKENS}, client)
        end = b""
        while b"[DONE]" not in end:
            data = await asyncio.get_running_loop().sock_recv(client, 1 << 16)
            assert data, "the stream was cut off"
            times.append(time.perf_counter())
            end = end[-5:] + data
    return [later - earlier for earlier, later in pairwise(times)]


async def run_round(harmed: Daemon, *, are_reading: bool) -> list[float]:
    """The gaps of all that are measured, beside others of one kind; none if the others ended too early."""
    async with others(harmed.port, are_reading=are_reading):
        await asyncio.to_thread(harmed.server.wait_for_metric, "engined:num_requests_running", NUM_OTHERS)
        await asyncio.sleep(HEAD_START_SECONDS)
        gaps = await asyncio.gather(*(measure(harmed.port) for _ in range(NUM_MEASURED)))
        running = await asyncio.to_thread(harmed.server.metric, "engined:num_requests_running")
    await asyncio.to_thread(harmed.server.wait_for_metric, "engined:num_requests_running", 0)
    return [gap for stream in gaps for gap in stream] if running == NUM_OTHERS else []


def main() -> int:
    """Run it and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each kind")
    arguments = parser.parse_args()
    beside = {True: Gaps(), False: Gaps()}
    with tempfile.TemporaryDirectory(prefix="engined-slow-") as folder:
        model = tiny_model.make(Path(folder) / "model")
        with daemon(model, Path(folder)) as harmed:
            harmed.wait_ready()
            for are_reading in [True, False] * arguments.rounds:
                if gaps := asyncio.run(run_round(harmed, are_reading=are_reading)):
                    beside[are_reading].add(gaps)
    print(f"beside {NUM_OTHERS} that read:     {beside[True].line()}")
    print(f"beside {NUM_OTHERS} that are stuck: {beside[False].line()}")
    print(f"p99 of the latter: {min(beside[False].p99s) / min(beside[True].p99s):.2f} times that of the former")
    return 0


if __name__ == "__main__":
    sys.exit(main())
