"""/v1/responses over HTTP, in front of a scripted engine: events, failures, hang-ups, keys, truncation."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config, ModelConfig, ServerConfig
from engined.frontend.api.responses import ResponsesRequest
from engined.tokenization.tokenizer import ModelTokenizer
from tests.frontend.conftest import ANSWER, RunningFrontend, StartFrontend
from tests.frontend.engine_peer import Script

RESPONSES = "/v1/responses"
QUESTION = {"input": "What is the capital of France?"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS}
ARGUMENTS = '{"city": "Ågypten 👩‍👩‍👧"}'
CALL = '{"name": "weather", "arguments": ' + ARGUMENTS + "}"
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def stream_events(frontend: RunningFrontend, body: dict[str, Any]) -> list[dict[str, Any]]:
    """All events of a stream; checks their frames and numbers."""
    async with frontend.client.post(f"http://engined{RESPONSES}", json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        text = await response.text()
    assert text.endswith("\n\n")
    events = []
    for frame in text[:-2].split("\n\n"):
        name, _, data = frame.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def without_run(response: dict[str, Any]) -> dict[str, Any]:
    """A response object without what differs from run to run."""
    output = [item | {"id": "", "call_id": ""} for item in response["output"]]
    return response | {"id": "", "created_at": 0, "completed_at": 0, "output": output}


async def test_streamed_and_whole_are_equal_and_in_the_store(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    status, whole = await frontend.post(RESPONSES, QUESTION)
    assert status == 200
    assert whole["output"][0]["content"] == [{"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}]
    assert (whole["status"], whole["error"], whole["incomplete_details"]) == ("completed", None, None)
    assert whole["id"].startswith("resp_") and whole["output"][0]["id"].startswith("msg_")
    assert await frontend.get(f"{RESPONSES}/{whole['id']}") == (200, whole)

    events = await stream_events(frontend, QUESTION)
    assert list(dict.fromkeys(event["type"] for event in events)) == ORDER
    assert [event["type"] for event in events].count("response.output_text.delta") == len(events) - len(ORDER) + 1
    assert "".join(event.get("delta", "") for event in events) == ANSWER
    created, last = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert without_run(last) == without_run(whole)
    assert events[-4]["text"] == ANSWER
    assert events[-3]["part"] == last["output"][0]["content"][0]
    assert events[-2]["item"] == last["output"][0]
    item_ids = {event["item_id"] for event in events if "item_id" in event}
    assert item_ids == {last["output"][0]["id"]}
    assert await frontend.get(f"{RESPONSES}/{last['id']}") == (200, last)


async def test_fields_come_back(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    sent = {
        "instructions": "Be brief.",
        "max_output_tokens": 40,
        "temperature": 0.5,
        "top_p": 0.9,
        "truncation": "auto",
        "metadata": {"a": "b"},
        "user": "me",
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "store": False,
    }
    harmless = {
        "tools": [],
        "tool_choice": "auto",
        "background": False,
        "reasoning": {"effort": "none", "summary": "auto", "mode": "standard"},
        "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"],
        "stream_options": None,
        "conversation": None,
    }
    extensions = {"seed": 7, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5, "ignore_eos": True, "cache_salt": "s"}
    status, whole = await frontend.post(RESPONSES, {**QUESTION, **sent, **harmless, **extensions, "request_id": "r1"})
    assert status == 200, whole
    assert {name: whole[name] for name in sent} == sent
    [request] = frontend.engine.added
    sampling = request.sampling
    assert (sampling.seed, sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (7, 5, 0.1, 1.5)
    assert (sampling.ignore_eos, request.cache_salt, sampling.max_tokens) == (True, "s", 40)
    assert (await frontend.get(f"{RESPONSES}/{whole['id']}"))[0] == 404


@pytest.mark.parametrize("is_stream", [False, True])
async def test_incomplete(start_frontend: StartFrontend, is_stream: bool) -> None:
    frontend = await start_frontend()
    body = {**QUESTION, "max_output_tokens": 3}
    if is_stream:
        events = await stream_events(frontend, body)
        assert events[-1]["type"] == "response.incomplete"
        response = events[-1]["response"]
        assert events[-2]["item"]["status"] == "incomplete"
    else:
        _, response = await frontend.post(RESPONSES, body)
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert ANSWER.startswith(response["output"][0]["content"][0]["text"])
    assert response["usage"]["output_tokens"] == 3


async def test_an_answer_that_runs_out_of_time_is_incomplete(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 3
    _, response = await frontend.post(RESPONSES, {**QUESTION, "timeout_s": 0.5})
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "timeout"})
    assert ANSWER.startswith(response["output"][0]["content"][0]["text"])


async def test_logprobs(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    body = {**QUESTION, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    _, whole = await frontend.post(RESPONSES, body)
    logprobs = whole["output"][0]["content"][0]["logprobs"]
    assert len(logprobs) == whole["usage"]["output_tokens"]
    assert all(entry["top_logprobs"] for entry in logprobs)
    events = await stream_events(frontend, body)
    deltas = [entry for event in events if event["type"].endswith("delta") for entry in event["logprobs"]]
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    assert deltas == done["logprobs"] == logprobs
    assert whole["top_logprobs"] == 2
    [item] = (await frontend.get(f"{RESPONSES}/{whole['id']}/input_items"))[1]["data"]
    assert item["content"] == [{"type": "input_text", "text": QUESTION["input"]}]
    status, error = await frontend.post(RESPONSES, {**QUESTION, "top_logprobs": 2})
    assert (status, error["error"]["param"]) == (400, "top_logprobs")


async def test_a_failure_after_the_headers_is_an_event_and_is_stored(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 4
    stream = asyncio.create_task(stream_events(frontend, QUESTION))
    async with asyncio.timeout(5):
        while await frontend.metric("generation_tokens_total") < 4:
            await asyncio.sleep(0.01)
    frontend.engine.die("out of luck")
    events = await stream
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert "out of luck" in events[-2]["message"] and events[-2]["code"] == "engine_dead"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert "out of luck" in failed["error"]["message"]
    text = "".join(event.get("delta", "") for event in events)
    assert failed["output"][0]["content"][0]["text"] == text and ANSWER.startswith(text) and text
    assert await frontend.get(f"{RESPONSES}/{failed['id']}") == (200, failed)
    status, body = await frontend.post(RESPONSES, {**QUESTION, "previous_response_id": failed["id"]})
    assert (status, body["error"]["param"]) == (400, "previous_response_id")


async def test_a_failure_before_the_first_output_is_a_plain_error(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.error = "no room"
    for is_stream in (False, True):
        status, body = await frontend.post(RESPONSES, {**QUESTION, "stream": is_stream})
        assert (status, body["error"]["message"]) == (500, "no room")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_hanging_up_aborts_and_stores_nothing(start_frontend: StartFrontend, is_stream: bool) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(responses_store_size=1)))
    _, kept = await frontend.post(RESPONSES, QUESTION)
    frontend.engine.stall_after = 2
    call = asyncio.create_task(frontend.post(RESPONSES, {**QUESTION, "stream": is_stream}))
    async with asyncio.timeout(5):
        while len(frontend.engine.added) < 2:
            await asyncio.sleep(0.01)
    call.cancel()
    await frontend.engine.wait_for_abort()
    assert frontend.engine.aborted == [frontend.engine.added[1].request_id]
    # The store holds one response: had the second one come in, the first would be gone.
    assert (await frontend.get(f"{RESPONSES}/{kept['id']}"))[0] == 200


async def test_conversation(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    _, first = await frontend.post(RESPONSES, {**QUESTION, "instructions": "Speak French."})
    body = {"input": [{"role": "user", "content": "And of Spain?"}], "previous_response_id": first["id"]}
    _, second = await frontend.post(RESPONSES, body)
    assert second["previous_response_id"] == first["id"]
    messages = [
        {"role": "user", "content": QUESTION["input"]},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "And of Spain?"},
    ]
    await frontend.post("/v1/chat/completions", {"messages": messages})
    assert frontend.engine.added[1].prompt_token_ids == frontend.engine.added[2].prompt_token_ids
    instructed = [{"role": "system", "content": "Speak French."}, messages[0]]
    await frontend.post("/v1/chat/completions", {"messages": instructed})
    assert frontend.engine.added[0].prompt_token_ids == frontend.engine.added[3].prompt_token_ids

    path = f"{RESPONSES}/{second['id']}/input_items"
    _, page = await frontend.get(path, params={"order": "asc"})
    assert [item["content"][0]["text"] for item in page["data"]] == [message["content"] for message in messages]
    assert [item["role"] for item in page["data"]] == ["user", "assistant", "user"]
    assert page["data"][1]["id"] == first["output"][0]["id"]
    _, newest = await frontend.get(path, params={"limit": 2})
    assert newest["data"] == page["data"][:0:-1] and newest["has_more"] is True
    _, rest = await frontend.get(path, params={"limit": 2, "after": newest["last_id"]})
    assert rest["data"] == page["data"][:1] and rest["has_more"] is False
    assert (rest["first_id"], rest["last_id"]) == (page["data"][0]["id"],) * 2
    for query in ({"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"order": "up"}, {"after": "msg_x"}):
        status, error = await frontend.get(path, params=query)
        assert (status, error["error"]["param"]) == (400, *query)

    # What is deleted can no longer be continued, what continued it can.
    assert (await frontend.client.delete(f"http://engined{RESPONSES}/{first['id']}")).status == 200
    status, error = await frontend.post(RESPONSES, body)
    assert (status, error["error"]["param"]) == (404, "previous_response_id")
    assert (await frontend.post(RESPONSES, {"input": "x", "previous_response_id": second["id"]}))[0] == 200


async def test_a_response_belongs_to_the_key_that_made_it(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(api_key=("mine", "yours"))))
    mine, yours = ({"Authorization": f"Bearer {key}"} for key in ("mine", "yours"))
    _, response = await frontend.post(RESPONSES, QUESTION, headers=mine)
    path = f"{RESPONSES}/{response['id']}"
    assert (await frontend.get(path, headers=mine))[0] == 200
    assert (await frontend.get(path, headers={"x-api-key": "mine"}))[0] == 200
    assert (await frontend.get(path))[0] == 401
    for route in (path, f"{path}/input_items"):
        status, body = await frontend.get(route, headers=yours)
        assert (status, body["error"]["code"]) == (404, "response_not_found")
    body = {**QUESTION, "previous_response_id": response["id"]}
    assert (await frontend.post(RESPONSES, body, headers=yours))[0] == 404
    assert (await frontend.post(RESPONSES, body, headers=mine))[0] == 200


async def test_without_a_store(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(responses_store_size=0)))
    status, response = await frontend.post(RESPONSES, QUESTION)
    assert (status, response["store"]) == (200, False)
    for field in ({"store": True}, {"previous_response_id": response["id"]}):
        status, body = await frontend.post(RESPONSES, {**QUESTION, **field})
        assert status in (400, 404) and body["error"]["param"] == [*field][0]


async def test_truncation(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(max_model_len=256)
    items = [
        {"role": role, "content": f"{role} number {turn}: " + "word " * 20}
        for turn in range(8)
        for role in ("user", "assistant")
    ]
    items.append({"role": "user", "content": "the last question"})
    status, body = await frontend.post(RESPONSES, {"input": items})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "input", "context_length_exceeded")
    assert 'truncation to "auto"' in body["error"]["message"]

    for max_output_tokens, room in ((40, 40), (None, 64), (1000, 128)):
        body = {"input": items, "truncation": "auto", "max_output_tokens": max_output_tokens, "instructions": "Obey."}
        status, response = await frontend.post(RESPONSES, body)
        assert status == 200
        _, page = await frontend.get(f"{RESPONSES}/{response['id']}/input_items?order=asc&limit=100")
        kept = [{"role": item["role"], "content": item["content"][0]["text"]} for item in page["data"]]
        assert kept == items[-len(kept) :] and len(kept) < len(items)
        assert kept[0]["role"] == "user"
        assert response["usage"]["input_tokens"] <= 256 - room
        # One question and answer more would not have left the room.
        longer = [{"role": "system", "content": "Obey."}, *items[-len(kept) - 2 :]]
        _, count = await frontend.post(f"{RESPONSES}/input_tokens", {"input": longer})
        assert "error" in count or count["input_tokens"] > 256 - room

    items[-1]["content"] = "word " * 300
    status, body = await frontend.post(RESPONSES, {"input": items, "truncation": "auto"})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


def says(tokenizer: ModelTokenizer, model_info: ModelInfo, text: str) -> Script:
    """A script of an engine that answers `text`."""
    token_ids = [*tokenizer.encode(text), model_info.eos_token_ids[0]]
    return lambda request: token_ids


async def test_a_call_streamed_and_whole(
    start_frontend: StartFrontend, tokenizer: ModelTokenizer, model_info: ModelInfo
) -> None:
    frontend = await start_frontend(script=says(tokenizer, model_info, CALL))
    body = {**QUESTION, "tools": [WEATHER], "tool_choice": "auto", "parallel_tool_calls": False}
    _, whole = await frontend.post(RESPONSES, body)
    [call] = whole["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", ARGUMENTS)
    assert call["id"].startswith("fc_") and call["call_id"].startswith("call_")
    assert (whole["status"], call["status"]) == ("completed", "completed")
    assert whole["tools"] == [{**WEATHER, "strict": False}]
    assert (whole["tool_choice"], whole["parallel_tool_calls"]) == ("auto", False)
    assert await frontend.get(f"{RESPONSES}/{whole['id']}") == (200, whole)

    events = await stream_events(frontend, body)
    last = events[-1]["response"]
    assert without_run(last) == without_run(whole)
    assert list(dict.fromkeys(event["type"] for event in events)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.get("delta", "") for event in events) == ARGUMENTS
    assert len(events) > 10
    assert events[-2]["item"] == last["output"][0]
    assert {event["item_id"] for event in events if "item_id" in event} == {last["output"][0]["id"]}


async def test_what_a_tool_returned_continues_the_conversation(
    start_frontend: StartFrontend, tokenizer: ModelTokenizer, model_info: ModelInfo
) -> None:
    frontend = await start_frontend(script=says(tokenizer, model_info, CALL))
    _, first = await frontend.post(RESPONSES, {**QUESTION, "tools": [WEATHER]})
    [call] = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    _, second = await frontend.post(
        RESPONSES, {"input": [result], "previous_response_id": first["id"], "tools": [WEATHER]}
    )
    explicit = [{"role": "user", **QUESTION}, call, result]
    explicit[0]["content"] = explicit[0].pop("input")
    assert (await frontend.post(RESPONSES, {"input": explicit, "tools": [WEATHER]}))[0] == 200
    function = {"name": "weather", "arguments": ARGUMENTS}
    messages = [
        {"role": "user", "content": QUESTION["input"]},
        {"role": "assistant", "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "sunny"},
    ]
    nested = {"type": "function", "function": {name: value for name, value in WEATHER.items() if name != "type"}}
    await frontend.post("/v1/chat/completions", {"messages": messages, "tools": [nested]})
    prompts = [request.prompt_token_ids for request in frontend.engine.added[1:]]
    assert prompts[0] == prompts[1] == prompts[2]
    _, page = await frontend.get(f"{RESPONSES}/{second['id']}/input_items", params={"order": "asc"})
    assert [item["type"] for item in page["data"]] == ["message", "function_call", "function_call_output"]
    assert page["data"][1] == call
    assert page["data"][2] == {**result, "id": page["data"][2]["id"], "name": None, "status": "completed"}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_that_is_cut_off(
    start_frontend: StartFrontend, tokenizer: ModelTokenizer, model_info: ModelInfo, is_stream: bool
) -> None:
    frontend = await start_frontend(script=says(tokenizer, model_info, CALL))
    body = {**QUESTION, "tools": [WEATHER], "max_output_tokens": len(tokenizer.encode(CALL.partition("gypten")[0]))}
    if is_stream:
        events = await stream_events(frontend, body)
        assert events[-1]["type"] == "response.incomplete"
        response = events[-1]["response"]
        assert events[-3]["arguments"] == response["output"][0]["arguments"]
    else:
        _, response = await frontend.post(RESPONSES, body)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    [call] = response["output"]
    assert call["status"] == "incomplete"
    assert ARGUMENTS.startswith(call["arguments"]) and call["arguments"].startswith('{"city')
    # The conversation goes on without it, continued or sent back.
    await frontend.post(RESPONSES, {"input": "Go on.", "previous_response_id": response["id"]})
    explicit = [{"role": "user", "content": QUESTION["input"]}, call, {"role": "user", "content": "Go on."}]
    assert (await frontend.post(RESPONSES, {"input": explicit}))[0] == 200
    assert frontend.engine.added[1].prompt_token_ids == frontend.engine.added[2].prompt_token_ids


async def test_reasoning_is_an_item_of_its_own(
    start_frontend: StartFrontend, tokenizer: ModelTokenizer, model_info: ModelInfo
) -> None:
    config = Config(model=ModelConfig(reasoning_parser="think"))
    text = f"<think>\nThey ask me.\n</think>\n\n{ANSWER}"
    frontend = await start_frontend(config, says(tokenizer, model_info, text))
    body = {**QUESTION, "reasoning": {"summary": "detailed"}, "include": ["reasoning.encrypted_content"]}
    _, whole = await frontend.post(RESPONSES, body)
    reasoning, message = whole["output"]
    assert reasoning["id"].startswith("rs_") and reasoning["summary"] == []
    [part] = reasoning["content"]
    assert part["type"] == "reasoning_text" and part["text"].strip() == "They ask me."
    assert message["content"][0]["text"] == ANSWER
    details = whole["usage"]["output_tokens_details"]
    assert 0 < details["reasoning_tokens"] < whole["usage"]["output_tokens"]
    assert whole["reasoning"] == {"effort": None, "summary": None}

    events = await stream_events(frontend, body)
    last = events[-1]["response"]
    assert without_run(last) == without_run(whole)
    thought = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(thought) == part["text"] and len(thought) > 1
    assert [event["output_index"] for event in events if "output_index" in event] == sorted(
        event["output_index"] for event in events if "output_index" in event
    )
    assert await frontend.get(f"{RESPONSES}/{last['id']}") == (200, last)

    # Continued or sent back, the model sees the same.
    await frontend.post(RESPONSES, {"input": "Go on.", "previous_response_id": whole["id"]})
    explicit = [{"role": "user", "content": QUESTION["input"]}, *whole["output"], {"role": "user", "content": "Go on."}]
    assert (await frontend.post(RESPONSES, {"input": explicit}))[0] == 200
    assert frontend.engine.added[-1].prompt_token_ids == frontend.engine.added[-2].prompt_token_ids

    # Cut off while it thinks, the answer has no message.
    _, cut = await frontend.post(RESPONSES, {**body, "max_output_tokens": 8})
    assert [(item["type"], item["status"]) for item in cut["output"]] == [("reasoning", "incomplete")]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"background": True}, "background", "leave it out"),
    ({"tools": [WEATHER, {"type": "web_search"}]}, "tools[1].type", "describe a function"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name", "rename one"),
    ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name", "letters"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name", "not one of"),
    ({"tools": [WEATHER], "include": ["message.output_text.logprobs"]}, "include", "/v1/chat/completions"),
    ({"reasoning": {"effort": "extreme"}}, "reasoning.effort", "thinking_token_budget"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary", ""),
    ({"reasoning": {"context": "all_turns"}}, "reasoning.context", "chat template"),
    ({"thinking_token_budget": 5}, "thinking_token_budget", "limit the whole answer with max_output_tokens"),
    ({"input": [RESULT]}, "input[0].call_id", "previous_response_id"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", ""),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "required"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "ask in a message"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    ({"prompt": {"id": "p"}}, "prompt", "instructions"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"max_output_tokens": True}, "max_output_tokens", "expected"),
    ({"temperature": 3}, "temperature", ""),
    ({"truncation": "left"}, "truncation", ""),
    ({"include": ["nope"]}, "include[0]", ""),
    ({"stream_options": {}}, "stream_options", "stream: true"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata", ""),
    ({"metadata": {"a": "x" * 513}}, "metadata", ""),
    ({"previous_response_id": "resp_none"}, "previous_response_id", "no response"),
    ({"priority": 1}, "priority", "--scheduling-policy"),
    ({"max_tokens": 5}, "max_tokens", "not a known field"),
    ({"messages": []}, "messages", "not a known field"),
    ({"model": "other"}, "model", "does not exist"),
    ({"input": None}, "input", ""),
]


async def test_refusals_name_the_field_and_the_remedy(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    for fields, param, text in REFUSED:
        for route in (RESPONSES, f"{RESPONSES}/input_tokens"):
            status, body = await frontend.post(route, {**QUESTION, **fields})
            if route != RESPONSES and [*fields][0] in ("temperature", "priority"):
                continue  # they do not make the prompt
            assert status == (404 if param in ("previous_response_id", "model") else 400), (fields, body)
            error = body["error"]
            assert error["param"].startswith(param) and text in error["message"], (fields, error)
    assert frontend.engine.added == []


async def test_what_is_stored_has_ended(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    _, response = await frontend.post(RESPONSES, QUESTION)
    path = f"{RESPONSES}/{response['id']}"
    status, body = await frontend.post(f"{path}/cancel", {})
    assert status == 400 and "background" in body["error"]["message"]
    status, body = await frontend.get(path, params={"stream": "true"})
    assert (status, body["error"]["param"]) == (400, "stream")
    assert (await frontend.get(f"{RESPONSES}/resp_none"))[0] == 404
    status, count = await frontend.post(f"{RESPONSES}/input_tokens", QUESTION)
    assert count == {"object": "response.input_tokens", "input_tokens": response["usage"]["input_tokens"]}


NASTY: list[Any] = [True, -1, 2**63, 1e308, "", "x" * 300, "\0", [1], ["x"], [[]], {}, {"a": {"b": [1]}}, {"type": "x"}]


async def test_nasty_values_are_refused_by_name(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    base = {**QUESTION, "max_output_tokens": 2}
    for field in msgspec.structs.fields(ResponsesRequest):
        for value in NASTY:
            if field.name == "stream" and value is True:
                continue
            status, body = await frontend.post(RESPONSES, {**base, field.name: value})
            where = (field.name, repr(value)[:60], status, body)
            assert status in (200, 400) or (status == 404 and field.name in ("model", "previous_response_id")), where
            if status == 400:
                assert body["error"]["param"].split(".")[0].split("[")[0] == field.name, where
                assert field.name in body["error"]["message"], where
    assert (await frontend.post(RESPONSES, base))[0] == 200
