"""R22: connections that do nothing cost little memory, and nobody waits for them."""

import asyncio
import resource
import time
from pathlib import Path

import pytest

from tests.reliability.clients import probe
from tests.reliability.fleet import Fleet

NUM_CONNECTIONS = 2_000
MAX_BYTES_EACH = 64 << 10
PROBE_P99 = 0.1


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def open_idle(port: int, count: int) -> list[asyncio.StreamWriter]:
    """Connections that have sent one request and have been answered, and now stay."""
    writers = []
    for _ in range(0, count, 50):
        opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(50)))
        for reader, writer in opened:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            writers.append(writer)
            assert (await reader.readline()).split()[1] == b"200"
    return writers


async def measure(port: int, pid: int, count: int, num_probes: int) -> tuple[float, list[float]]:
    """Bytes of each connection in the frontend, and the seconds of probes meanwhile, sorted."""
    before = resident(pid)
    writers = await open_idle(port, count)
    each = (resident(pid) - before) / count
    seconds = []
    for _ in range(num_probes):
        started = time.monotonic()
        assert await asyncio.to_thread(probe, port) == 200
        seconds.append(time.monotonic() - started)
        await asyncio.sleep(0.01)
    for writer in writers:
        writer.transport.abort()
    return each, sorted(seconds)


@pytest.mark.alone
def test_two_thousand_idle_connections(fleet: Fleet) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NUM_CONNECTIONS + 500
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    harmed = fleet.ready("frontend")
    frontend = harmed.pid("frontend")
    each, seconds = asyncio.run(measure(harmed.port, frontend, NUM_CONNECTIONS, 100))
    p99 = seconds[98]
    print(f"{each / 1024:.1f} KiB each; probes: median {seconds[50] * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms")
    assert each <= MAX_BYTES_EACH
    assert p99 <= PROBE_P99
    assert harmed.pid("frontend") == frontend
    fleet.keep(harmed)
