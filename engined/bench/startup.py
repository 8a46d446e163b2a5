"""What a start of `engined serve` takes: seconds until it is ready and until the first token, and memory then.

Runs in the process of `engined bench startup`; each daemon is a child of it, with a socket and data of its own.
"""

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from engined.bench.answer import read_answer, read_json
from engined.bench.exchange import encode_request, exchange
from engined.bench.plan import FIRST_TOKEN_ID, PlannedRequest
from engined.bench.process_tree import tree_memory
from engined.bench.run import find_model
from engined.bench.server import Server
from engined.errors import BenchError, StartupError
from engined.ipc.paths import check_socket_path

OWN_FLAGS = ("--host", "--port", "--uds", "--data-dir")
"""Set for each daemon here."""
_POLL_SECONDS = 0.01
_REQUEST_TIMEOUT = 60.0
_STOP_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartResult:
    """One start. Seconds since the process was made, bytes."""

    ready: float
    first_token: float
    rss: int
    """Of all processes; what several of them share counts for each."""
    pss: int
    """The same, counted once."""


async def measure_start(arguments: Sequence[str], timeout: float) -> StartResult:
    """Start `engined serve` with these arguments, get one token, and stop it.

    Raises StartupError if it ends by itself, or is not ready after `timeout` seconds; BenchError if there is no token.
    """
    folder = Path(tempfile.mkdtemp(prefix="engined-bench-"))
    try:
        path = folder / "api.sock"
        check_socket_path(path)
        own = ["--host", "none", "--uds", str(path), "--data-dir", str(folder / "data")]
        server = Server(name="engined", url=f"unix:{path}", model=None, uds=str(path))
        started = time.perf_counter()
        async with _daemon([*arguments, *own], folder / "log") as process:
            await _until_ready(server, process, folder / "log", started + timeout)
            ready = time.perf_counter() - started
            first_token = await _first_token(server) - started
            memory = tree_memory(process.pid)
            return StartResult(ready=ready, first_token=first_token, rss=memory.rss, pss=memory.pss)
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def _daemon(arguments: Sequence[str], log_path: Path) -> AsyncIterator["subprocess.Popen[bytes]"]:
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "engined.cli.main", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, _STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _until_ready(server: Server, process: "subprocess.Popen[bytes]", log_path: Path, deadline: float) -> None:
    request = encode_request(server, "GET", "/readyz")
    while True:
        try:
            read_json(await exchange(server, request, _REQUEST_TIMEOUT))
        except ValueError:
            if (code := process.poll()) is not None:
                cause = log_path.read_text(errors="replace").strip().rpartition("\n")[2]
                raise StartupError(f"`engined serve` ended: {cause}", code if code > 0 else 70) from None
            if time.perf_counter() > deadline:
                raise StartupError("`engined serve` was not ready in time: raise --timeout") from None
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return


async def _first_token(server: Server) -> float:
    """When the first token came, in seconds of `time.perf_counter`."""
    model = await find_model(server, _REQUEST_TIMEOUT)
    body = PlannedRequest(prompt=[FIRST_TOKEN_ID], output=1).body(model)
    raw = encode_request(server, "POST", "/v1/completions", body)
    answer = read_answer(await exchange(server, raw, _REQUEST_TIMEOUT))
    if answer.error is not None:
        raise BenchError(f"`engined serve`: its first token failed: {answer.error}")
    return answer.token_times[0]
