"""What idle connections cost: `python -m tests.benchmarks.idle_connections [--connections 10000]`.

Starts a daemon with a tiny model, opens the connections (each has had one answer), and prints the memory that each
costs the frontend and how long probes take meanwhile. Needs as many descriptors as connections, here and there.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
from pathlib import Path

from tests.reliability import tiny_model
from tests.reliability.daemon import daemon
from tests.reliability.test_connections import measure


def main() -> int:
    """Run it and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--probes", type=int, default=300)
    arguments = parser.parse_args()
    wanted = arguments.connections + 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted:
        print(f"this process may open {hard} files, not {wanted}", file=sys.stderr)
        return 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with tempfile.TemporaryDirectory(prefix="engined-idle-") as folder:
        model = tiny_model.make(Path(folder) / "model")
        flags = ("--max-connections", str(wanted), "--max-connections-per-ip", str(wanted))
        with daemon(model, Path(folder), "", *flags) as harmed:
            harmed.wait_ready()
            pid = harmed.pid("frontend")
            each, seconds = asyncio.run(measure(harmed.port, pid, arguments.connections, arguments.probes))
    p99 = seconds[len(seconds) * 99 // 100]
    print(
        f"{arguments.connections} connections: {each / 1024:.1f} KiB each; probes: "
        f"median {seconds[len(seconds) // 2] * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, max {seconds[-1] * 1000:.1f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
