"""/v1/messages in front of a scripted engine: shapes, events, errors and keys, as Anthropic's clients know them."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw

from engined.config.schema import Config, ServerConfig
from engined.errors import RequestError
from engined.frontend.api.messages import CountTokensRequest, MessageBlock, MessagesRequest
from engined.frontend.api.parser import BodyParser, check_refused, refused_fields
from engined.frontend.serving.messages.convert import continues_answer, to_chat_messages, to_chat_request
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


def parse(**fields: Any) -> MessagesRequest:
    return BodyParser(MessagesRequest).parse(json.dumps(BODY | fields).encode())


def test_turns_of_one_role_are_one_message() -> None:
    request = parse(
        system="Be brief.",
        messages=[
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
        ],
    )
    system, user, assistant = to_chat_messages(request)
    assert (system.role, system.content) == ("system", "Be brief.")
    assert user.role == "user" and isinstance(user.content, list)
    assert [part.text for part in user.content] == ["a", "b", "c"]
    assert (assistant.role, assistant.content) == ("assistant", "d")
    assert continues_answer(request) and to_chat_request(request).continue_final_message
    assert not to_chat_request(parse()).continue_final_message


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages must hold"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role must be one of user"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content is empty"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (user({"type": "image", "source": {"type": "url", "url": "http://x"}}), "text only"),
        (user({"type": "text", "text": "x"}, {"type": "document", "source": {}}), "messages[0].content[1].type"),
        (user({"type": "tool_result", "tool_use_id": "t", "content": "x"}), "tool calling is not available yet"),
        (user({"type": "tool_use", "id": "t", "name": "f", "input": {}}), "tool calling is not available yet"),
        (user({"type": "thinking", "thinking": "hm", "signature": "s"}), "reasoning is not available yet"),
        (user({"type": "redacted_thinking", "data": "s"}), "reasoning is not available yet"),
        (user({"type": "text"}), "messages[0].content[0].text is required"),
        (user({"type": "text", "text": "x", "citations": [{"type": "char_location"}]}), "content[0].citations"),
        (user({"type": "text", "text": "x", "cach_control": {}}), "did you mean cache_control?"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"name": "f", "input_schema": {}}]}, "tool calling is not available yet"),
        ({"tool_choice": {"type": "none"}}, "tool_choice is not supported"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "reasoning is not available yet"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "structured output"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences may hold 16"),
        ({"stop_sequences": ["x", ""]}, "stop_sequences[1] must have 1 to 256 characters"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_token": 5}, "did you mean max_tokens?"),
        ({"cache_control": {"type": "forever"}}, "cache_control.type"),
    ],
)
def test_refusals_name_the_field_and_the_remedy(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        to_chat_request(parse(**fields))
    assert words in str(caught.value)
    assert caught.value.status == 400


def test_a_refused_value_may_be_deep() -> None:
    """The parser lets through what it can just read; from deeper in the stack that is one level too many."""
    block = MessageBlock(type="text", text="x", citations=Raw(b"[" * 2000 + b"]" * 2000))
    with pytest.raises(RequestError, match="citations is not supported"):
        check_refused(block, refused_fields(MessageBlock))


def test_null_means_not_given() -> None:
    names = (name for name in MessagesRequest.__struct_fields__ if name not in ("max_tokens", "messages"))
    assert to_chat_request(parse(**dict.fromkeys(names))) == to_chat_request(parse())


def test_counting_needs_no_max_tokens() -> None:
    request = BodyParser(CountTokensRequest).parse(json.dumps({"messages": BODY["messages"]}).encode())
    assert to_chat_messages(request) == to_chat_messages(parse())
