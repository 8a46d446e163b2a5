"""Streams that are started and cancelled as fast as the machine can: `python -m tests.benchmarks.cancel_storm`.

One client opens connection after connection to a daemon with a tiny model and leaves each again, most at the first
byte of the answer and every fourth before. Prints the rate; exit code 1 if anything is left when the storm is over:
a request, a KV block, a descriptor, a thread, or another process than before.
"""

import argparse
import json
import socket
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from tests.benchmarks.soak import settle
from tests.reliability import tiny_model
from tests.reliability.daemon import daemon

NUM_OPEN = 48
WARM_UP_SECONDS = 10.0
BODY = json.dumps({"prompt": "hello " * 8, "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
REQUEST = (
    "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n"
).encode() + BODY


def storm(port: int, seconds: float) -> int:
    """Start and cancel for so long; how many."""
    opened: deque[socket.socket] = deque()
    deadline = time.monotonic() + seconds
    count = 0
    while time.monotonic() < deadline:
        client = socket.create_connection(("127.0.0.1", port), timeout=10)
        client.sendall(REQUEST)
        opened.append(client)
        count += 1
        if len(opened) > NUM_OPEN:
            leave(opened.popleft(), at_once=count % 4 == 0)
    while opened:
        leave(opened.popleft(), at_once=False)
    return count


def leave(client: socket.socket, *, at_once: bool) -> None:
    """Close a connection, after the first byte of its answer or before."""
    with client:
        if not at_once:
            assert client.recv(12) == b"HTTP/1.1 200", "a request was refused"


def main() -> int:
    """Run it; 1 if something is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engined-storm-") as folder:
        model = tiny_model.make(Path(folder) / "model")
        with daemon(model, Path(folder)) as harmed:
            harmed.wait_ready()
            pids = harmed.note_pids()
            storm(harmed.port, WARM_UP_SECONDS)
            before = settle(harmed)
            aborted = harmed.server.metric("engined:request_success_total", finished_reason="abort")
            count = storm(harmed.port, arguments.seconds)
            after = settle(harmed)
            aborted = harmed.server.metric("engined:request_success_total", finished_reason="abort") - aborted
            waiting = harmed.server.metric("engined:num_requests_waiting")
            same = harmed.note_pids() == pids
    rate = count / arguments.seconds
    print(f"{rate:.0f} starts and cancels a second, {aborted / arguments.seconds:.0f} of them reached the engine")
    print(f"before {before.line()}\nafter  {after.line()}")
    is_clean = same and waiting == 0 and after.fds == before.fds and after.threads == before.threads
    print("nothing is left" if is_clean else "something is left")
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
