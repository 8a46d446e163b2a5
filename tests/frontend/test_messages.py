"""/v1/messages in front of a scripted engine: shapes, events, errors and keys, as Anthropic's clients know them."""

import asyncio
import json
from typing import Any

import pytest

from engined.config.schema import Config, ServerConfig
from engined.tokenization.tokenizer import ModelTokenizer
from tests.frontend.conftest import ANSWER, RunningFrontend, StartFrontend

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
BODY: dict[str, Any] = {"max_tokens": 64, "messages": [{"role": "user", "content": "What is the capital of France?"}]}


async def events(frontend: RunningFrontend, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The payloads of a stream, each of which must be named by its type."""
    async with frontend.client.post(f"http://engined{MESSAGES}", json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        text = await response.text()
    assert text.endswith("\n\n")
    parsed = []
    for event in text[:-2].split("\n\n"):
        name, data = event.split("\n")
        parsed.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {parsed[-1]['type']}"
    return parsed


async def test_whole_answer(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    status, message = await frontend.post(MESSAGES, BODY)
    assert status == 200
    assert message.pop("id").startswith("msg_")
    _, count = await frontend.post(COUNT, {"messages": BODY["messages"]})
    num_tokens = message["usage"]["output_tokens"]
    assert 3 < num_tokens <= 64
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "smol",
        "content": [{"type": "text", "text": ANSWER}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": count["input_tokens"] - 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": num_tokens,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


@pytest.mark.parametrize("tokens_per_step", [1, 5, 100])
async def test_events(start_frontend: StartFrontend, tokens_per_step: int) -> None:
    frontend = await start_frontend()
    frontend.engine.tokens_per_step = tokens_per_step
    _, whole = await frontend.post(MESSAGES, BODY)
    start, block_start, *deltas, block_stop, delta, stop = await events(frontend, BODY)
    message = start["message"]
    assert start["type"] == "message_start" and message["content"] == []
    assert (message["stop_reason"], message["usage"]["cache_read_input_tokens"]) == (None, 3)
    assert block_start == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert {(event["type"], event["index"], event["delta"]["type"]) for event in deltas} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert all(event["delta"]["text"] for event in deltas)
    assert "".join(event["delta"]["text"] for event in deltas) == ANSWER
    assert block_stop == {"type": "content_block_stop", "index": 0}
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta == {"type": "message_delta", "delta": ending, "usage": whole["usage"]}
    assert stop == {"type": "message_stop"}


async def test_why_it_stopped(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    for changes, text, reason, sequence in (
        ({"stop_sequences": ["nope", "ce is P"]}, "The capital of Fran", "stop_sequence", "ce is P"),
        ({"max_tokens": 2}, "The capital", "max_tokens", None),
    ):
        _, message = await frontend.post(MESSAGES, {**BODY, **changes})
        assert message["content"] == [{"type": "text", "text": text}]
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
        stream = await events(frontend, {**BODY, **changes})
        assert "".join(e["delta"]["text"] for e in stream if e["type"] == "content_block_delta") == text
        assert stream[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


async def test_an_empty_answer_still_has_its_block(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(script=lambda request: [frontend.engine.eos_token_id])
    _, message = await frontend.post(MESSAGES, BODY)
    assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": ""}], "end_turn")
    types = [event["type"] for event in await events(frontend, BODY)]
    assert types == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]


async def test_settings_reach_the_engine(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    settings = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "max_tokens": 9}
    harmless = {
        "metadata": {"user_id": "me"},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "tools": [],
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "prompt-caching-2024-07-31"}
    status, message = await frontend.post(f"{MESSAGES}?beta=true", {**BODY, **settings, **harmless}, headers=headers)
    assert status == 200, message
    sampling = frontend.engine.added[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.25, 7, 9)


async def test_requests_of_coding_agents(start_frontend: StartFrontend) -> None:
    """Cached system blocks, many tools, several results in one message, long ones and failed ones."""
    frontend = await start_frontend(max_model_len=100_000)
    cached: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {}}
    tools = [{"name": f"mcp__files__tool_{number}", "description": "x", "input_schema": schema} for number in range(99)]
    calls = [{"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"n": number}} for number in (1, 2)]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a line\n" * 2000}]},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such file", "is_error": True, **cached},
    ]
    thought = {"type": "thinking", "thinking": "I read.", "signature": "of another server"}
    prompt = {
        "system": [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": "Be brief.", **cached}],
        "tools": [*tools[:-1], tools[-1] | cached | {"eager_input_streaming": True}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>Hi.</system-reminder>"}]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, *calls]},
            {"role": "user", "content": [*results, {"type": "text", "text": "Go on.", **cached}]},
        ],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    status, message = await frontend.post(f"{MESSAGES}?beta=true", {"max_tokens": 64, "temperature": 1, **prompt})
    assert (status, message["content"]) == (200, [{"type": "text", "text": ANSWER}]), message
    status, count = await frontend.post(f"{COUNT}?beta=true", prompt)
    assert (status, count["input_tokens"]) == (200, len(frontend.engine.added[0].prompt_token_ids))


async def test_a_call_of_a_model_whose_template_knows_no_tools(
    start_frontend: StartFrontend, tokenizer: ModelTokenizer
) -> None:
    call = '{"name": "look", "arguments": {"where": "here"}}'
    frontend = await start_frontend(script=lambda request: [*tokenizer.encode(call), frontend.engine.eos_token_id])
    body = BODY | {"tools": [{"name": "look", "input_schema": {"type": "object"}}]}
    _, message = await frontend.post(MESSAGES, body)
    [block] = message["content"]
    assert block.pop("id").startswith("toolu_")
    assert block == {"type": "tool_use", "name": "look", "input": {"where": "here"}}
    assert message["stop_reason"] == "tool_use"
    stream = await events(frontend, body)
    pieces = [event["delta"]["partial_json"] for event in stream if event["type"] == "content_block_delta"]
    assert "".join(pieces) == '{"where": "here"}' and len(pieces) > 1


async def test_error_in_a_stream(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 3
    stream = asyncio.create_task(events(frontend, BODY))
    await asyncio.sleep(0.2)
    frontend.engine.die("out of memory")
    async with asyncio.timeout(5):
        *begun, error = await stream
    assert {event["type"] for event in begun} == {"message_start", "content_block_start", "content_block_delta"}
    assert error["type"] == "error" and error["error"]["type"] == "api_error"
    assert "out of memory" in error["error"]["message"] and error["request_id"].startswith("req_")
    assert (await frontend.get("/readyz"))[0] == 503  # retried where the stream's connection is just being closed
    async with frontend.client.post(f"http://engined{MESSAGES}", json=BODY) as response:
        assert (response.status, response.headers["Retry-After"]) == (529, "5")
        assert (await response.json())["error"]["type"] == "overloaded_error"


async def test_pings_while_nothing_comes(start_frontend: StartFrontend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engined.frontend.serving.streaming.KEEP_ALIVE_SECONDS", 0.05)
    frontend = await start_frontend()
    frontend.engine.step_delay = 0.2
    stream = await events(frontend, {**BODY, "max_tokens": 3})
    assert stream.count({"type": "ping"}) >= 4
    assert stream[-1] == {"type": "message_stop"}


async def test_errors_have_anthropics_shape(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(max_body_size=2000)), max_model_len=64)
    json_type = {"Content-Type": "application/json"}
    long = {"max_tokens": 5, "messages": [{"role": "user", "content": "word " * 90}]}
    cases: list[tuple[int, str, str, str, dict[str, Any]]] = [
        (404, "not_found_error", "POST", "/v1/messages/batches", {}),
        (405, "invalid_request_error", "GET", MESSAGES, {}),
        (415, "invalid_request_error", "POST", MESSAGES, {"data": b"{}", "headers": {"Content-Type": "text/plain"}}),
        (413, "request_too_large", "POST", COUNT, {"data": b'"' + b"x" * 3000 + b'"', "headers": json_type}),
        (400, "invalid_request_error", "POST", MESSAGES, {"data": b"{nope", "headers": json_type}),
        (404, "not_found_error", "POST", MESSAGES, {"json": {**BODY, "model": "other"}}),
        (404, "not_found_error", "POST", COUNT, {"json": {"messages": BODY["messages"], "model": "other"}}),
        (400, "invalid_request_error", "POST", MESSAGES, {"json": {"messages": BODY["messages"]}}),
        (400, "invalid_request_error", "POST", MESSAGES, {"json": long}),
    ]
    for status, type, method, path, arguments in cases:
        async with frontend.client.request(method, f"http://engined{path}", **arguments) as response:
            body = await response.json()
            assert response.status == status, (path, body)
            assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
            assert status != 405 or response.headers["Allow"] == "POST"
        assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
        assert set(body["error"]) == {"type", "message"} and body["error"]["type"] == type
    status, body = await frontend.post(COUNT, {"messages": long["messages"]})
    assert (status, body["input_tokens"] > 64) == (200, True)  # what does not fit can still be counted


async def test_keys(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(api_key=("secret-1", "secret-2"))))
    wrong = ({}, {"x-api-key": "nope"}, {"x-api-key": "é" * 3000}, {"x-api-key": ""}, {"x-api-key": "Bearer secret-1"})
    right = (
        {"x-api-key": "secret-1"},
        {"x-api-key": "secret-2"},
        {"Authorization": "Bearer secret-1"},
        {"Authorization": "Bearer nope", "x-api-key": "secret-2"},
    )
    for headers in wrong:
        status, body = await frontend.post(MESSAGES, BODY, headers=headers)
        assert (status, body["error"]["type"]) == (401, "authentication_error")
        status, body = await frontend.get("/v1/models", headers=headers)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    for headers in right:
        assert (await frontend.post(MESSAGES, BODY, headers=headers))[0] == 200
        assert (await frontend.get("/v1/models", headers=headers))[0] == 200
