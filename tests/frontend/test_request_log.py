"""One line of the log for each request: what it says, and what never gets into it."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engined.checkpoint.model_info import ModelInfo
from engined.config.api_keys import digest_key
from engined.config.schema import Config, ModelConfig, ServerConfig
from engined.log.formats import JsonFormatter
from engined.tokenization.tokenizer import ModelTokenizer
from tests.frontend.conftest import RunningFrontend, StartFrontend

CHAT = "/v1/chat/completions"
KEY, PROMPT = "sk-s3cr3t", "pr0mpt-text"
HEADERS = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "label-1"}
FIELDS = [
    *("id", "label", "key", "endpoint", "status", "finish_reason", "error", "num_sequences", "prompt_tokens"),
    *("cached_tokens", "generated_tokens", "reasoning_tokens"),
    *("queue_seconds", "first_output_seconds", "total_seconds"),
]


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{PROMPT}\n\x1b[31m"}], **fields}


@pytest.fixture
async def frontend(start_frontend: StartFrontend, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> RunningFrontend:
    keys = tmp_path / "keys"
    keys.write_text(f"laptop sha256:{digest_key(KEY).hex()} scopes=inference\n")
    keys.chmod(0o600)
    caplog.set_level(logging.DEBUG, logger="engined")
    running = await start_frontend(config=Config(server=ServerConfig(api_keys_file=str(keys))))
    caplog.clear()
    return running


async def lines_about(caplog: pytest.LogCaptureFixture, route: str, count: int) -> list[logging.LogRecord]:
    """The lines about requests to a route, once there are so many; the last is written after the answer is sent."""
    async with asyncio.timeout(5):
        while True:
            lines = [r for r in caplog.records if getattr(r, "request", {}).get("endpoint") == route]
            if len(lines) >= count:
                assert len(lines) == count
                return lines
            await asyncio.sleep(0.01)


async def test_one_line_a_request(frontend: RunningFrontend, caplog: pytest.LogCaptureFixture) -> None:
    _, answer = await frontend.post(CHAT, body(n=2), headers=HEADERS)
    stream = body(stream=True, max_tokens=2)
    headers = HEADERS | {"X-Request-Id": "x\ty"}
    async with frontend.client.post(f"http://engined{CHAT}", json=stream, headers=headers) as response:
        await response.read()
    whole, streamed = await lines_about(caplog, CHAT, 2)
    facts: dict[str, Any] = whole.__dict__["request"]
    assert list(facts) == FIELDS
    assert facts["id"] == answer["id"] and facts["label"] == "label-1" and facts["key"] == "laptop"
    assert (facts["status"], facts["finish_reason"], facts["error"]) == (200, "stop", None)
    usage = answer["usage"]
    assert facts["prompt_tokens"] == usage["prompt_tokens"] and facts["cached_tokens"] == 3
    assert facts["generated_tokens"] == usage["completion_tokens"] and facts["num_sequences"] == 2
    assert facts["queue_seconds"] == pytest.approx(0.001, abs=0.0005)
    assert 0 < facts["first_output_seconds"] < facts["total_seconds"]
    assert whole.levelname == "INFO" and "\n" not in JsonFormatter("x", is_journal=False).format(whole)
    assert whole.getMessage().startswith(f"{answer['id']} (label-1) laptop {CHAT} 200: stop; ")
    assert streamed.__dict__["request"]["label"].startswith("req_")
    assert streamed.__dict__["request"]["finish_reason"] == "length"
    assert streamed.__dict__["request"]["generated_tokens"] == 2


async def test_failures_and_refusals(frontend: RunningFrontend, caplog: pytest.LogCaptureFixture) -> None:
    frontend.engine.error = "the sampler failed"
    assert (await frontend.post(CHAT, body(), headers=HEADERS))[0] == 500
    assert (await frontend.post(CHAT, body(max_tokens=0), headers=HEADERS))[0] == 400
    assert (await frontend.post(CHAT, body(model=PROMPT), headers=HEADERS))[0] == 404
    assert (await frontend.post(CHAT, body(), headers={"X-Request-Id": "label-2", "x-api-key": KEY + "x"}))[0] == 401
    failed, refused, unknown, stranger = await lines_about(caplog, CHAT, 4)
    said = failed.__dict__["request"]
    assert (said["status"], said["finish_reason"], said["error"]) == (500, "error", "the sampler failed")
    assert (
        failed.levelname == "WARNING"
        and refused.levelname == unknown.levelname == "INFO"
        and stranger.levelname == "DEBUG"
    )
    assert refused.getMessage().startswith(f"(label-1) laptop {CHAT} 400: invalid_request_error; total ")
    assert unknown.__dict__["request"]["error"] == "model_not_found"
    assert stranger.__dict__["request"]["key"] == "" and stranger.__dict__["request"]["label"] == "label-2"
    await frontend.get("/no/f0rged%0a%1b", headers=HEADERS)
    (nowhere,) = await lines_about(caplog, "other", 1)
    assert nowhere.getMessage().startswith("(label-1) laptop other 404: not_found")
    assert not any(text in caplog.text for text in (PROMPT, KEY, "f0rged", "\x1b"))
    caplog.clear()
    frontend.engine.error, frontend.engine.stall_after = None, 2
    with pytest.raises((TimeoutError, aiohttp.ClientError)):
        await frontend.post(CHAT, body(), headers=HEADERS, timeout=aiohttp.ClientTimeout(total=0.5))
    (gone,) = await lines_about(caplog, CHAT, 1)
    said = gone.__dict__["request"]
    # What the engine made for nobody counts too.
    assert (said["status"], said["finish_reason"], said["generated_tokens"]) == (499, "client_disconnect", 2)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_reasoning_is_told_apart(
    start_frontend: StartFrontend,
    tokenizer: ModelTokenizer,
    model_info: ModelInfo,
    caplog: pytest.LogCaptureFixture,
    is_stream: bool,
) -> None:
    caplog.set_level(logging.INFO, logger="engined")
    tokens = [*tokenizer.encode("<think>\nThey ask me.\n</think>\n\nHello"), model_info.eos_token_ids[0]]
    frontend = await start_frontend(Config(model=ModelConfig(reasoning_parser="think")), lambda request: tokens)
    async with frontend.client.post(f"http://engined{CHAT}", json=body(stream=is_stream)) as response:
        await response.read()
    [line] = await lines_about(caplog, CHAT, 1)
    facts = line.__dict__["request"]
    assert 0 < facts["reasoning_tokens"] < facts["generated_tokens"]
    assert f"({facts['reasoning_tokens']} of them reasoning)" in line.getMessage()
