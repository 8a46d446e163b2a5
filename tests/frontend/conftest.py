"""A real frontend on a Unix socket, in front of a scripted engine; and the tokenizer of the default model."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from engined.checkpoint.load import load_model_info
from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config
from engined.frontend.app import build_frontend
from engined.frontend.connection_timers import DEFAULT_TIMES, ConnectionTimes
from engined.frontend.pressure import Pressure
from engined.frontend.server import run_frontend
from engined.tokenization.tokenizer import ModelTokenizer, load_tokenizer
from tests.frontend.engine_peer import ScriptedEngine

ANSWER = "The capital of France is Paris. 👩‍👩‍👧 你好!"


@pytest.fixture(scope="session")
def model_info(default_gguf: Path) -> ModelInfo:
    return replace(load_model_info(default_gguf), name="smol")


@pytest.fixture(scope="session")
def tokenizer(model_info: ModelInfo) -> ModelTokenizer:
    return load_tokenizer(model_info)


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A short path: the names of Unix sockets are limited to about 100 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="engined-test-"))
    yield folder
    shutil.rmtree(folder)


@dataclass
class RunningFrontend:
    """A served frontend: `client` is an HTTP client of it."""

    client: aiohttp.ClientSession
    engine: ScriptedEngine
    task: asyncio.Task[None]
    path: str
    app: web.Application
    pressure: Pressure
    port: int | None = None
    """Of its TCP socket on 127.0.0.1, if it was started with one."""

    async def post(self, route: str, body: Any, **kwargs: Any) -> tuple[int, Any]:
        async with self.client.post(f"http://engined{route}", json=body, **kwargs) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, route: str, **kwargs: Any) -> tuple[int, Any]:
        async with self.client.get(f"http://engined{route}", **kwargs) as response:
            return response.status, await response.json(content_type=None)

    async def stream(self, route: str, body: dict[str, Any]) -> list[str]:
        """The payloads of all events of a stream, comments left out."""
        async with self.client.post(f"http://engined{route}", json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            text = await response.text()
        assert text.endswith("\n\n")
        return [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: ")]

    async def metric(self, name: str) -> float:
        """The value of a metric, over all labels."""
        async with self.client.get("http://engined/metrics") as response:
            lines = (await response.text()).splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"engined:{name}{{")]
        assert values, name
        return sum(values)

    async def metric_of_process(self, name: str) -> float:
        """The value of a metric that has no labels."""
        async with self.client.get("http://engined/metrics") as response:
            lines = (await response.text()).splitlines()
        [value] = [line.split(" ")[1] for line in lines if line.startswith(f"engined:{name} ")]
        return float(value)


StartFrontend = Callable[..., Awaitable[RunningFrontend]]


@pytest.fixture
async def start_frontend(
    socket_dir: Path, model_info: ModelInfo, tokenizer: ModelTokenizer
) -> AsyncIterator[StartFrontend]:
    """Starts a frontend; keyword arguments: `config`, `script`, `is_ready`, `max_model_len`, `tcp` for a port too,
    `times` that clients get."""
    async with AsyncExitStack() as stack:

        async def start(
            config: Config | None = None,
            script: Callable[..., list[int]] | None = None,
            is_ready: bool = True,
            max_model_len: int = 512,
            tcp: bool = False,
            times: ConnectionTimes = DEFAULT_TIMES,
        ) -> RunningFrontend:
            config = config or Config()
            [eos_token_id, *_] = model_info.eos_token_ids
            default_script = lambda request: [*tokenizer.encode(ANSWER), eos_token_id]  # noqa: E731
            engine = ScriptedEngine(socket_dir / "engine.sock", script or default_script, eos_token_id, max_model_len)
            await engine.listen()
            stack.push_async_callback(engine.close)
            frontend = build_frontend(config, model_info, engine.path)
            listener = socket.socket(socket.AF_UNIX)
            path = str(socket_dir / "http.sock")
            listener.bind(path)
            listener.listen()
            listeners = [listener, *([socket.create_server(("127.0.0.1", 0))] if tcp else [])]
            port = listeners[1].getsockname()[1] if tcp else None
            beaten = asyncio.Event()
            timeout = config.server.shutdown_timeout
            task = asyncio.create_task(
                run_frontend(frontend, listeners, timeout, lambda: None, lambda phase: beaten.set(), times)
            )
            stack.push_async_callback(_stop, task)
            await beaten.wait()
            client = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path))
            stack.push_async_callback(client.close)
            running = RunningFrontend(client, engine, task, path, frontend.app, frontend.pressure, port)
            if is_ready:
                await engine.send_ready()
                async with asyncio.timeout(5):
                    while (await running.get("/readyz"))[0] != 200:
                        await asyncio.sleep(0.01)
            return running

        yield start


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
