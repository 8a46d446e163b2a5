"""A frontend as a real child process: started the way the supervisor starts it, served, and stopped by a signal."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config
from engined.process.board import Board
from engined.process.launch import ChildProcess, ChildSpec
from engined.tokenization.tokenizer import ModelTokenizer
from tests.frontend.conftest import ANSWER
from tests.frontend.engine_peer import ScriptedEngine


@pytest.fixture
def board() -> Iterator[Board]:
    """What the supervisor would write on."""
    with contextlib.closing(Board()) as board:
        yield board


async def test_child_process_serves_and_drains(
    socket_dir: Path, model_info: ModelInfo, tokenizer: ModelTokenizer, board: Board
) -> None:
    eos_token_id = model_info.eos_token_ids[0]
    script = lambda request: [*tokenizer.encode(ANSWER), eos_token_id]  # noqa: E731
    engine = ScriptedEngine(socket_dir / "engine.sock", script, eos_token_id)
    await engine.listen()
    listener = socket.socket(socket.AF_UNIX)
    path = str(socket_dir / "http.sock")
    listener.bind(path)
    listener.listen()
    spec = ChildSpec(
        name="frontend 0",
        entry="engined.frontend.main",
        data={"config": Config(), "model_info": model_info, "engine_socket": engine.path},
        fds={"uds": listener.fileno(), "board": board.fd},
    )
    child = ChildProcess.start(spec)
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as client:
            await engine.send_ready()
            while (await client.get("http://engined/readyz")).status != 200:
                await asyncio.sleep(0.01)
            body = {"messages": [{"role": "user", "content": "hi"}]}
            async with client.post("http://engined/v1/chat/completions", json=body) as response:
                answer = await response.json()
        assert answer["choices"][0]["message"]["content"] == ANSWER
        assert [report.kind for report in child.read_status() if report.kind != "progress"] == ["ready"]
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        assert "libtorch" not in maps
        child.signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.join, 10.0) == 0
    finally:
        child.stop(1.0)
        child.close()
        listener.close()
        await engine.close()


async def test_a_model_without_tokenizer_ends_the_process(
    socket_dir: Path, model_info: ModelInfo, board: Board
) -> None:
    data = {
        "config": Config(),
        "model_info": {**_fields(model_info), "path": str(socket_dir), "checkpoint_format": "safetensors"},
        "engine_socket": str(socket_dir / "none.sock"),
    }
    spec = ChildSpec(name="frontend 0", entry="engined.frontend.main", data=data, fds={"board": board.fd})
    child = ChildProcess.start(spec)
    try:
        assert await asyncio.to_thread(child.join, 30.0) == 66
        child.read_status()
        assert child.failure is not None and "tokenizer.json" in child.failure.text
    finally:
        child.stop(1.0)
        child.close()


def _fields(model_info: ModelInfo) -> dict[str, object]:
    return {name: getattr(model_info, name) for name in model_info.__dataclass_fields__}
