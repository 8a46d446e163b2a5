"""timeout_s and ttft_timeout_s: what has begun ends with what it has, what has not is a 408; nothing runs on."""

import json
import time
from typing import Any

import pytest

from tests.frontend.conftest import StartFrontend

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi", "max_tokens": 50},
}


@pytest.mark.parametrize("limit", ["timeout_s", "ttft_timeout_s"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_no_token_in_time_is_a_408(start_frontend: StartFrontend, limit: str, is_stream: bool) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 0
    for endpoint, body in BODIES.items():
        started = time.monotonic()
        async with frontend.client.post(
            f"http://engined{endpoint}", json={**body, limit: 0.2, "stream": is_stream}
        ) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["param"]) == (408, "timeout", limit)
            assert response.headers["x-should-retry"] == "false"
        assert 0.15 < time.monotonic() - started < 3
    await frontend.engine.wait_for_abort(2)


async def test_a_whole_answer_that_has_begun_ends_with_what_it_has(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 3
    status, whole = await frontend.post(COMPLETIONS, {**BODIES[COMPLETIONS], "n": 2, "timeout_s": 0.3, "logprobs": 1})
    assert status == 200
    for choice in whole["choices"]:
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
            "The capital of",
            "abort",
            "timeout",
        )
        assert len(choice["logprobs"]["tokens"]) == 3
    assert whole["usage"]["completion_tokens"] == 6
    await frontend.engine.wait_for_abort(2)
    assert await frontend.metric("num_requests_running") == 0


async def test_a_stream_that_has_begun_ends_properly(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 3
    body = {**BODIES[CHAT], "timeout_s": 0.3, "stop": ["of the"], "stream_options": {"include_usage": True}}
    events = await frontend.stream(CHAT, body)
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    last = chunks[-2]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("abort", "timeout")
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert text == "The capital of"  # also the part that might have become a stop string


async def test_a_choice_whose_prompt_was_not_scored(start_frontend: StartFrontend) -> None:
    """One prompt has been answered when the time is up, the other has not even begun."""
    frontend = await start_frontend()
    frontend.engine.stall_after = 0
    frontend.engine.stalls = lambda request: len(request.prompt_token_ids) == 3
    body = {"prompt": [[5, 6], [5, 6, 7]], "echo": True, "logprobs": 1, "max_tokens": 2, "timeout_s": 0.3}
    status, whole = await frontend.post(COMPLETIONS, body)
    assert status == 200
    first, second = whole["choices"]
    assert (first["finish_reason"], second["finish_reason"]) == ("length", "abort")
    assert len(second["logprobs"]["tokens"]) == len(second["logprobs"]["token_logprobs"]) == 3


async def test_limits_that_are_kept_change_nothing(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    for endpoint, body in BODIES.items():
        status, whole = await frontend.post(endpoint, {**body, "timeout_s": 60, "ttft_timeout_s": 60.5})
        assert status == 200 and whole["choices"][0]["finish_reason"] == "stop"
    assert frontend.engine.aborted == []
