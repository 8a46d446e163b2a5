"""What streaming costs a frontend: a real one, with a stub for its engine and clients that only take what comes.

Runs in the process of `engined bench stream`; the frontend is its child.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from engined.bench.answer import read_answer
from engined.bench.exchange import encode_request, exchange
from engined.bench.plan import PlannedRequest
from engined.bench.process_tree import CPU_RESOLUTION, cpu_seconds
from engined.bench.server import Server
from engined.bench.stub_engine import StubEngine
from engined.bench.summary import Spread
from engined.catalogue.resolve import resolve_model
from engined.checkpoint.load import load_model_info
from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config, ServerConfig
from engined.errors import BenchError, StartupError
from engined.ipc.paths import RuntimeDirectory
from engined.process.board import Board
from engined.process.launch import ChildProcess, ChildSpec, describe_exit
from engined.protocol.boot import FrontendBoot
from engined.protocol.codec import to_builtins
from engined.tokenization.tokenizer import load_tokenizer

Route = Literal["completions", "chat"]

_MAX_MODEL_LEN = 1 << 20
_TIMEOUT = 300.0
_READY_TIMEOUT = 60.0
_POLL_SECONDS = 0.02
_STOP_TIMEOUT = 10.0
_TEXT = (
    "The committee met on Tuesday, and by noon it had agreed on almost nothing. “We will publish the figures,” said "
    "the chair, “as soon as they exist.” In cafés across town people did the sums themselves: 1,250 a month, twelve "
    "months, less what the repairs had cost.\n"
)
"""What is streamed, over and over: words, numbers, and characters of several bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What is streamed."""

    route: Route
    output: int
    """Tokens to each client."""
    step_seconds: float
    """Least time between two steps of the engine; 0: as fast as it can."""
    num_rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """What one number of clients cost, over all rounds."""

    num_clients: int
    tokens_per_second: Spread
    tokens_per_cpu_second: Spread
    """Of the frontend process, all its threads: what one core can stream."""
    events_per_token: Spread
    """Below 1 where tokens that were ready together left together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    tokens_per_second: float
    tokens_per_cpu_second: float
    events_per_token: float


async def measure_streams(model: str, clients: Sequence[int], options: StreamOptions) -> list[StreamResult]:
    """One frontend with the tokenizer of `model`, and so many clients at a time.

    Raises ModelError, StartupError if the frontend does not start, BenchError if a stream fails.
    """
    info = load_model_info(resolve_model(model))
    token_ids = load_tokenizer(info).encode(_TEXT)
    with RuntimeDirectory() as directory:
        stub = StubEngine(directory.socket_path("engine"), token_ids, _MAX_MODEL_LEN, options.step_seconds)
        async with stub as engine, _frontend(info, directory, engine, max(clients)) as (server, child):
            results = []
            for count in clients:
                await _measure(server, child, engine, count, options)  # warms up
                rounds = [await _measure(server, child, engine, count, options) for _ in range(options.num_rounds)]
                results.append(_summarise(count, rounds))
            return results


@asynccontextmanager
async def _frontend(
    info: ModelInfo, directory: RuntimeDirectory, engine: StubEngine, max_clients: int
) -> AsyncIterator[tuple[Server, ChildProcess]]:
    """A frontend on a Unix socket, which has found the engine to work."""
    path = directory.socket_path("api")
    server_config = ServerConfig(
        host="none",
        data_dir=str(directory.path / "data"),
        max_queued_requests=max(ServerConfig().max_queued_requests, max_clients),
        max_connections=max(ServerConfig().max_connections, max_clients),
        log_level="warning",
    )
    boot = FrontendBoot(config=Config(server=server_config), model_info=info, engine_socket=str(engine.path))
    with (
        contextlib.closing(socket.socket(socket.AF_UNIX)) as listener,
        contextlib.closing(Board()) as board,
    ):
        listener.bind(str(path))
        listener.listen(max_clients)
        child = ChildProcess.start(
            ChildSpec(
                name="frontend 0",
                entry="engined.frontend.main",
                data=to_builtins(boot),
                log_level=server_config.log_level,
                fds={"uds": listener.fileno(), "board": board.fd},
            )
        )
        try:
            await _until_ready(child)
            yield Server(name="frontend", url=f"unix:{path}", model=info.name, uds=str(path)), child
        finally:
            child.stop(_STOP_TIMEOUT)
            child.close()


async def _until_ready(child: ChildProcess) -> None:
    """Raises StartupError if the frontend ends, or takes too long."""
    deadline = time.monotonic() + _READY_TIMEOUT
    while not any(report.kind == "ready" for report in child.read_status()):
        if (code := child.poll()) is not None:
            cause = child.failure.text if child.failure is not None else describe_exit("the frontend", code)
            raise StartupError(cause)
        if time.monotonic() > deadline:
            raise StartupError(f"the frontend was not ready after {_READY_TIMEOUT:g} s")
        await asyncio.sleep(_POLL_SECONDS)


async def _measure(
    server: Server, child: ChildProcess, engine: StubEngine, num_clients: int, options: StreamOptions
) -> _Round:
    assert server.model is not None
    is_chat = options.route == "chat"
    request = PlannedRequest(prompt=[] if is_chat else [1], output=options.output, words="Hello" if is_chat else None)
    raw = encode_request(server, "POST", request.route(), request.body(server.model))
    clients = [asyncio.create_task(exchange(server, raw, _TIMEOUT)) for _ in range(num_clients)]
    waiting = asyncio.create_task(engine.wait_for_requests(num_clients))
    # A client that ends before the engine begins was refused; the others need not wait for it.
    await asyncio.wait([*clients, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    started, cpu = time.perf_counter(), cpu_seconds(child.pid)
    await engine.stream()
    results = await asyncio.gather(*clients)
    seconds, cpu = time.perf_counter() - started, cpu_seconds(child.pid) - cpu
    answers = [read_answer(result) for result in results]
    for answer in answers:
        if answer.error is not None:
            raise BenchError(f"the frontend: a stream failed: {answer.error}")
    num_tokens = sum(answer.num_tokens for answer in answers)
    return _Round(
        tokens_per_second=num_tokens / seconds,
        tokens_per_cpu_second=num_tokens / max(cpu, CPU_RESOLUTION),
        events_per_token=sum(len(answer.token_times) for answer in answers) / num_tokens,
    )


def _summarise(num_clients: int, rounds: Sequence[_Round]) -> StreamResult:
    return StreamResult(
        num_clients=num_clients,
        tokens_per_second=Spread.of([each.tokens_per_second for each in rounds]),
        tokens_per_cpu_second=Spread.of([each.tokens_per_cpu_second for each in rounds]),
        events_per_token=Spread.of([each.events_per_token for each in rounds]),
    )
