"""Many streams, many clients that hang up: everything is given back, and nothing grows."""

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.server import Server, descendants, running


@pytest.fixture
def small_server(default_gguf: Path, tmp_path: Path):
    with running(default_gguf, tmp_path, "--kv-cache-memory", "128MiB") as server:
        touch_the_whole_cache(server)
        yield server


def touch_the_whole_cache(server: Server) -> None:
    """So that memory can then only grow by a leak. It holds 5,800 tokens, and different ones take different blocks."""
    for number in range(8):
        prompt = [100 + (number * 1000 + i) % 40_000 for i in range(1000)]
        server.complete(prompt=prompt, max_tokens=1)


async def open_stream(server: Server, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(server.uds))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + data)
    await writer.drain()
    return reader, writer


async def read_to_the_end(server: Server, body: dict[str, Any]) -> bytes:
    reader, writer = await open_stream(server, body)
    answer = await reader.read()
    writer.close()
    return answer


async def hang_up(server: Server, body: dict[str, Any], delay: float) -> None:
    _, writer = await open_stream(server, body)
    await asyncio.sleep(delay)
    writer.transport.abort()


async def storm(server: Server, seed: int) -> None:
    rng = random.Random(seed)

    def make_body(**changes: Any) -> dict[str, Any]:
        prompt = [rng.randrange(100, 49000) for _ in range(rng.randrange(1, 120))]
        return {"prompt": prompt, "stream": True, "max_tokens": 16, "ignore_eos": True, "temperature": 0} | changes

    streams = [read_to_the_end(server, make_body()) for _ in range(64)]
    quitters = [
        hang_up(server, make_body(max_tokens=500, n=rng.choice((1, 4)), stream=rng.random() < 0.5), rng.random() * 3)
        for _ in range(100)
    ]
    answers = await asyncio.gather(*streams, *quitters)
    for answer in answers[:64]:
        assert isinstance(answer, bytes)
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), answer[-300:]


def resident_bytes(server: Server) -> int:
    total = 0
    for pid in descendants(server.pid):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


@pytest.mark.alone
def test_streams_and_hang_ups_again_and_again(small_server: Server) -> None:
    sizes = []
    for round_number in range(3):
        asyncio.run(storm(small_server, round_number))
        small_server.wait_for_metric("engined:num_requests_running", 0)
        small_server.wait_for_metric("engined:num_requests_waiting", 0)
        small_server.wait_for_metric("engined:kv_cache_usage_perc", 0)
        time.sleep(2)  # a resting engine gives back what its batches needed
        sizes.append(resident_bytes(small_server))
    print("resident MiB after each round:", [size >> 20 for size in sizes])
    assert sizes[1] <= sizes[0] * 1.02
    assert sizes[2] <= sizes[1] * 1.02
    finished = small_server.metric("engined:request_success_total")
    print(f"{finished:.0f} sequences ended")
    assert small_server.metric("engined:request_success_total", finished_reason="abort") > 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt_length", [4, 4000])
def test_a_client_that_goes_away_frees_its_blocks(default_server: Server, stream: bool, prompt_length: int) -> None:
    """Decoding, and in the middle of a long prompt."""
    body = {"prompt": [100 + i % 1000 for i in range(prompt_length)], "max_tokens": 2000, "stream": stream}
    aborted = default_server.metric("engined:request_success_total", finished_reason="abort")
    asyncio.run(hang_up(default_server, body | {"ignore_eos": True, "cache_salt": f"{stream}-{prompt_length}"}, 0.5))
    default_server.wait_for_metric("engined:kv_cache_usage_perc", 0)
    default_server.wait_for_metric("engined:num_requests_running", 0)
    assert default_server.metric("engined:request_success_total", finished_reason="abort") == aborted + 1
