"""Nothing that a client may send, or ask for, holds up the event loop for long."""

import asyncio
import io
import json
import time
from typing import Any

import pytest

from tests.frontend.conftest import StartFrontend

pytestmark = pytest.mark.alone

MOST_SECONDS = 0.1
"""Of processor time in one callback. Time on the clock would tell more about the machine's other work."""
MESSAGE = {"role": "user", "content": "x"}


@pytest.fixture
def longest_callbacks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """Processor time of the loop's callbacks that take long, and what they were."""
    found: list[tuple[float, str]] = []
    original = asyncio.Handle._run

    def run(self: asyncio.Handle) -> None:
        start = time.thread_time()
        original(self)
        seconds = time.thread_time() - start
        if seconds > MOST_SECONDS:
            found.append((seconds, repr(self)))

    monkeypatch.setattr(asyncio.Handle, "_run", run)
    return found


async def test_large_requests_and_answers(
    start_frontend: StartFrontend, longest_callbacks: list[tuple[float, str]]
) -> None:
    frontend = await start_frontend(script=lambda request: [1000] * 10_000, max_model_len=20_000)
    frontend.engine.tokens_per_step = 100
    schema = {"type": "object", "properties": {f"field{number}": {"type": "string"} for number in range(80_000)}}
    json_schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("/v1/chat/completions", {"messages": [MESSAGE] * 100_000 + [{"role": "nobody", "content": ""}]}, 400),
        ("/v1/chat/completions", {"messages": [MESSAGE], "response_format": json_schema}, 400),
        ("/v1/completions", {"prompt": "x", "logit_bias": {str(number): 1 for number in range(200_000)}}, 400),
        ("/v1/completions", {"prompt": [5] * 800_000}, 400),
        ("/v1/completions", {"prompt": "x", "max_tokens": 5000, "ignore_eos": True, "logprobs": 20}, 200),
        ("/tokenize", {"prompt": "a b " * 50_000, "return_token_strs": True}, 200),
    ]
    bodies = [json.dumps(body).encode() for _, body, _ in cases]
    await asyncio.sleep(0)
    longest_callbacks.clear()  # that was the test's own
    for (path, body, expected), data in zip(cases, bodies, strict=True):
        headers = {"Content-Type": "application/json"}
        async with frontend.client.post(f"http://engined{path}", data=io.BytesIO(data), headers=headers) as response:
            await response.read()
            assert response.status == expected
        assert longest_callbacks == [], (path, list(body))


async def test_chunks_of_one_byte(start_frontend: StartFrontend, longest_callbacks: list[tuple[float, str]]) -> None:
    """Six bytes on the wire for one that counts: the most work that a byte of a body can make."""
    frontend = await start_frontend()
    await asyncio.sleep(0)
    longest_callbacks.clear()  # that was the start
    reader, writer = await asyncio.open_unix_connection(frontend.path)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
    chunks = b"1\r\n \r\n" * 10_000
    for _ in range(20):
        writer.write(chunks)
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    async with asyncio.timeout(20):
        assert b" 400 " in await reader.readline()
    writer.close()
    assert longest_callbacks == []
