"""The frontend over HTTP, in front of a scripted engine: shapes, streams, errors, disconnects, drain."""

import asyncio
import json
import os
import signal
import sys

import pytest

from engined.config.schema import Config, ModelConfig, SchedulerConfig, ServerConfig
from engined.tokenization.tokenizer import ModelTokenizer
from tests.frontend.conftest import ANSWER, StartFrontend

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}


def chat_text(events: list[str], index: int = 0) -> str:
    chunks = [json.loads(event) for event in events[:-1]]
    return "".join(
        choice["delta"].get("content", "")
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


async def test_whole_and_streamed_answers_are_equal(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    status, whole = await frontend.post(CHAT, QUESTION)
    assert status == 200
    [choice] = whole["choices"]
    assert choice["message"]["content"] == ANSWER
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert whole["id"].startswith("chatcmpl-") and whole["model"] == "smol"

    body = {**QUESTION, "stream_options": {"include_usage": True}}
    events = await frontend.stream(CHAT, body)
    assert events[-1] == "[DONE]"
    assert chat_text(events) == ANSWER
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


@pytest.mark.parametrize("stream_options", [None, {}, {"include_usage": False}])
async def test_usage_only_where_it_is_asked_for(start_frontend: StartFrontend, stream_options: object) -> None:
    frontend = await start_frontend()
    events = await frontend.stream(CHAT, {**QUESTION, "stream_options": stream_options})
    assert all("usage" not in json.loads(event) for event in events[:-1])


async def test_continuous_usage_counts_up(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await frontend.stream(CHAT, {**QUESTION, "stream_options": options})
    counts = [usage["completion_tokens"] for e in events[:-1] if (usage := json.loads(e)["usage"]) is not None]
    assert counts == sorted(counts) and len(counts) > 3


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
async def test_stop_string_across_tokens(start_frontend: StartFrontend, tokens_per_step: int) -> None:
    frontend = await start_frontend()
    frontend.engine.tokens_per_step = tokens_per_step
    body = {**QUESTION, "stop": ["nope", "ce is P"]}
    _, whole = await frontend.post(CHAT, body)
    [choice] = whole["choices"]
    assert choice["message"]["content"] == "The capital of Fran"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "ce is P")
    assert chat_text(await frontend.stream(CHAT, body)) == "The capital of Fran"
    included = await frontend.post(CHAT, {**body, "include_stop_str_in_output": True})
    assert included[1]["choices"][0]["message"]["content"] == "The capital of France is P"


async def test_stop_string_aborts_in_the_engine(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.step_delay = 0.01
    await frontend.post(CHAT, {**QUESTION, "stop": "capital"})
    await frontend.engine.wait_for_abort()
    assert frontend.engine.aborted == [frontend.engine.added[0].request_id]
    assert await frontend.metric("request_success_total") == 1


async def test_stream_interval(start_frontend: StartFrontend, tokenizer: ModelTokenizer) -> None:
    frontend = await start_frontend()
    frontend.engine.step_delay = 0.002
    events = await frontend.stream(
        COMPLETIONS, {"prompt": "x", "max_tokens": 10, "stream_interval": 4, "return_token_ids": True}
    )
    sizes = [len(json.loads(event)["choices"][0]["token_ids"]) for event in events[:-1]]
    assert sizes == [1, 4, 4, 1]


async def test_choices_and_prompts(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    body = {"prompt": ["one", "two"], "n": 2, "seed": 7, "max_tokens": 50, "logit_bias": {"5": 1}}
    status, whole = await frontend.post(COMPLETIONS, body)
    assert status == 200
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert all(choice["text"] == ANSWER for choice in whole["choices"])
    seeds = [request.sampling.seed for request in frontend.engine.added]
    assert seeds == [7, 8, 7, 8]
    assert frontend.engine.added[0].sampling.logit_bias == ((5, 1.0),)
    assert whole["usage"]["prompt_tokens"] == 2
    events = await frontend.stream(COMPLETIONS, body)
    texts = dict.fromkeys(range(4), "")
    for event in events[:-1]:
        [choice] = json.loads(event)["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == dict.fromkeys(range(4), ANSWER)


async def test_unseeded_requests_differ_and_repeat_with_server_seed(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(model=ModelConfig(seed=5)))
    for _ in range(2):
        await frontend.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1})
    seeds = [request.sampling.seed for request in frontend.engine.added]
    assert len(set(seeds)) == 2


async def test_completion_logprobs_with_echo(start_frontend: StartFrontend, tokenizer: ModelTokenizer) -> None:
    frontend = await start_frontend()
    body = {"prompt": "Hello big world", "max_tokens": 2, "logprobs": 2, "echo": True}
    _, whole = await frontend.post(COMPLETIONS, body)
    [choice] = whole["choices"]
    assert choice["text"] == "Hello big world" + "The capital"
    arrays = choice["logprobs"]
    assert arrays["tokens"] == ["Hello", " big", " world", "The", " capital"]
    assert arrays["token_logprobs"] == [None, -2.5, -2.5, -2.5, -2.5]
    assert arrays["text_offset"] == [0, 5, 9, 15, 18]
    assert arrays["top_logprobs"][0] is None
    assert arrays["top_logprobs"][1] == {
        tokenizer.token_text(100): -1.0,
        tokenizer.token_text(101): -2.0,
        " big": -2.5,
    }
    events = await frontend.stream(COMPLETIONS, body)
    chunks = [json.loads(event)["choices"][0] for event in events[:-1]]
    for name in arrays:
        assert sum((chunk["logprobs"][name] for chunk in chunks), []) == arrays[name]


async def test_scoring_a_prompt(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    body = {"prompt": "Hello big world", "max_tokens": 0, "logprobs": 0, "echo": True}
    _, whole = await frontend.post(COMPLETIONS, body)
    [choice] = whole["choices"]
    assert choice["text"] == "Hello big world" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == [None, -2.5, -2.5]
    events = await frontend.stream(COMPLETIONS, body)
    assert json.loads(events[0])["choices"][0]["logprobs"] == choice["logprobs"]


async def test_chat_logprobs(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    body = {**QUESTION, "logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    _, whole = await frontend.post(CHAT, body)
    content = whole["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["The", " capital", " of"]
    assert content[1]["bytes"] == list(b" capital")
    assert [alternative["logprob"] for alternative in content[0]["top_logprobs"]] == [-1.0, -2.0, -2.5]
    events = await frontend.stream(CHAT, body)
    streamed = [json.loads(event)["choices"][0]["logprobs"] for event in events[:-1]]
    assert sum((item["content"] for item in streamed if item), []) == content
    _, plain = await frontend.post(CHAT, {**QUESTION, "logprobs": True})
    assert plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_prompt_logprobs_and_token_ids(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    body = {**QUESTION, "prompt_logprobs": 1, "return_token_ids": True, "max_tokens": 2}
    _, whole = await frontend.post(CHAT, body)
    request = frontend.engine.added[0]
    assert whole["prompt_token_ids"] == request.prompt_token_ids
    assert len(whole["choices"][0]["token_ids"]) == 2
    prompt_logprobs = whole["prompt_logprobs"]
    assert prompt_logprobs[0] is None and len(prompt_logprobs) == len(request.prompt_token_ids)
    actual = prompt_logprobs[1][str(request.prompt_token_ids[1])]
    assert (actual["logprob"], actual["rank"]) == (-2.5, 3)


async def test_fields_reach_the_engine(start_frontend: StartFrontend, tokenizer: ModelTokenizer) -> None:
    config = Config(
        scheduler=SchedulerConfig(scheduling_policy="priority"),
        model=ModelConfig(override_generation_config={"temperature": 0.5, "top_k": 9}),
    )
    frontend = await start_frontend(config=config)
    body = {
        "prompt": [1, 2, 3],
        "max_tokens": 10_000,
        "min_tokens": 2,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "stop_token_ids": [7],
        "allowed_token_ids": [7, 8],
        "bad_words": ["Paris"],
        "ignore_eos": True,
        "priority": -3,
        "cache_salt": "abc",
        "seed": -2,
    }
    status, _ = await frontend.post(COMPLETIONS, body)
    assert status == 200
    [request] = frontend.engine.added
    sampling = request.sampling
    assert (request.priority, request.cache_salt, request.prompt_token_ids) == (-3, "abc", [1, 2, 3])
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 0, 0.9, 0.1)
    assert sampling.max_tokens == 512 - 3 and sampling.min_tokens == 2
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.5)
    assert (sampling.stop_token_ids, sampling.allowed_token_ids) == ((7,), (7, 8))
    assert sampling.ignore_eos and sampling.eos_token_ids == (2, 0)
    assert sampling.seed == 2**64 - 2
    assert set(sampling.bad_words_ids) == {tuple(tokenizer.encode(text)) for text in ("Paris", " Paris")}


async def test_stop_token_is_reported_and_hidden(start_frontend: StartFrontend, tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("one two three")
    frontend = await start_frontend(script=lambda request: ids)
    body = {"prompt": "x", "stop_token_ids": [ids[-1]], "max_tokens": 9}
    _, whole = await frontend.post(COMPLETIONS, body)
    [choice] = whole["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("one two", ids[-1])
    assert whole["usage"]["completion_tokens"] == 3
    _, included = await frontend.post(COMPLETIONS, {**body, "include_stop_str_in_output": True})
    assert included["choices"][0]["text"] == "one two three"


async def test_greedy_and_defaults(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    await frontend.post(CHAT, {**QUESTION, "temperature": 1e-6, "top_p": 0.5, "n": 2})
    await frontend.post(COMPLETIONS, {"prompt": "x"})
    greedy, _, plain = frontend.engine.added
    assert (greedy.sampling.temperature, greedy.sampling.top_p) == (0.0, 1.0)
    assert greedy.sampling.max_tokens == 512 - len(greedy.prompt_token_ids)
    assert plain.sampling.max_tokens == 16 and plain.sampling.temperature == 1.0


async def test_truncation(start_frontend: StartFrontend, tokenizer: ModelTokenizer) -> None:
    frontend = await start_frontend()
    text = " ".join(str(number) for number in range(5000))
    for truncate, expected in ((5, 5), (-1, 511)):
        await frontend.post(COMPLETIONS, {"prompt": text, "truncate_prompt_tokens": truncate})
        ids = frontend.engine.added[-1].prompt_token_ids
        assert ids == tokenizer.encode(text)[-expected:]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("stall_after", [0, 3])
async def test_client_that_goes_away(start_frontend: StartFrontend, is_stream: bool, stall_after: int) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = stall_after
    body = {**QUESTION, "n": 4, "stream": is_stream}
    request = asyncio.create_task(frontend.post(CHAT, body))
    async with asyncio.timeout(5):
        while len(frontend.engine.added) < 4:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    request.cancel()
    await asyncio.wait([request])
    await frontend.engine.wait_for_abort(4)
    assert sorted(frontend.engine.aborted) == sorted(added.request_id for added in frontend.engine.added)
    assert await frontend.metric("request_success_total") == 4
    assert await frontend.metric("num_requests_running") == 0
    frontend.engine.stall_after = None
    assert (await frontend.post(CHAT, QUESTION))[0] == 200


@pytest.mark.parametrize("cause", [None, "out of memory"])
async def test_engine_dies_in_mid_stream(start_frontend: StartFrontend, cause: str | None) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 3
    stream = asyncio.create_task(frontend.stream(CHAT, QUESTION))
    whole = asyncio.create_task(frontend.post(CHAT, QUESTION))
    await asyncio.sleep(0.2)
    frontend.engine.die(cause)
    async with asyncio.timeout(5):
        events = await stream
        status, body = await whole
    assert events[-1] == "[DONE]"
    error = json.loads(events[-2])["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_dead")
    assert sum("error" in json.loads(event) for event in events[:-1]) == 1
    assert all(json.loads(event)["choices"][0]["finish_reason"] is None for event in events[:-2])
    assert (status, body["error"]["code"]) == (500, "engine_dead")
    status, body = await frontend.get("/readyz")
    assert status == 503 and (cause or "closed its link") in body["reason"]
    status, body = await frontend.post(CHAT, QUESTION)
    assert (status, body["error"]["code"]) == (503, "engine_unavailable")
    assert await frontend.metric("request_success_total") == 2
    # A new engine at the same socket brings the frontend back.
    frontend.engine.stall_after = None
    await frontend.engine.send_ready()
    async with asyncio.timeout(5):
        while (await frontend.get("/readyz"))[0] != 200:
            await asyncio.sleep(0.02)
    assert (await frontend.post(CHAT, QUESTION))[0] == 200


async def test_request_that_the_engine_refuses(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.error = "the logits are not finite"
    status, body = await frontend.post(CHAT, {**QUESTION, "stream": True})
    assert (status, body["error"]["message"]) == (500, "the logits are not finite")
    frontend.engine.error = None
    assert (await frontend.post(CHAT, QUESTION))[0] == 200


async def test_before_the_engine_is_ready(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(is_ready=False)
    async with frontend.client.post(f"http://engined{CHAT}", json=QUESTION) as response:
        body = await response.json()
        assert response.status == 503 and response.headers["Retry-After"]
        assert body["error"]["type"] == "server_error"
    status, body = await frontend.get("/readyz")
    assert status == 503 and "loading" in body["reason"]
    assert (await frontend.get("/livez"))[0] == 200
    assert (await frontend.get("/v1/models"))[0] == 200
    await frontend.engine.send_ready()
    await asyncio.sleep(0.1)
    assert (await frontend.get("/health"))[0] == 200


async def test_drain_lets_running_requests_finish(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.step_delay = 0.03
    assert (await frontend.get("/livez"))[0] == 200
    stream = asyncio.create_task(frontend.stream(CHAT, QUESTION))
    second = await asyncio.open_unix_connection(frontend.path)
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.05)
    reader, writer = second
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"
    )
    answer = await reader.read()
    head = answer.decode().lower()
    assert " 503 " in head and "connection: close" in head and "retry-after:" in head
    writer.close()
    assert chat_text(await stream) == ANSWER
    async with asyncio.timeout(5):
        await frontend.task


async def test_drain_ends_what_takes_too_long(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(shutdown_timeout=0.2)))
    frontend.engine.stall_after = 2
    stream = asyncio.create_task(frontend.stream(CHAT, QUESTION))
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        events = await stream
        await frontend.task
    assert json.loads(events[-2])["error"]["code"] == "shutting_down" and events[-1] == "[DONE]"
    assert len(frontend.engine.aborted) == 1


async def test_second_signal_ends_the_drain(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    frontend.engine.stall_after = 2
    stream = asyncio.create_task(frontend.stream(CHAT, QUESTION))
    await asyncio.sleep(0.1)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.02)
    async with asyncio.timeout(5):
        await stream
        await frontend.task


async def test_keep_alive_comments(start_frontend: StartFrontend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engined.frontend.serving.streaming.KEEP_ALIVE_SECONDS", 0.05)
    frontend = await start_frontend()
    frontend.engine.step_delay = 0.2
    async with frontend.client.post(
        f"http://engined{COMPLETIONS}", json={"prompt": "x", "max_tokens": 3, "stream": True}
    ) as response:
        text = await response.text()
    assert text.count(": keep-alive\n\n") >= 4
    events = [event for event in text.split("\n\n") if event.startswith("data: ")]
    assert len(events) == 4


async def test_slow_reader_gets_merged_deltas(start_frontend: StartFrontend, tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("word " * 40_000)
    frontend = await start_frontend(script=lambda request: ids, max_model_len=100_000)
    frontend.engine.tokens_per_step = 64
    body = {"prompt": "x", "max_tokens": 50_000, "stream": True}
    async with frontend.client.post(f"http://engined{COMPLETIONS}", json=body) as response:
        await asyncio.sleep(1.0)
        text = await response.text()
    chunks = [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == tokenizer.decode(ids)


async def test_authentication(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(api_key=("secret-1", "secret-2"))))
    for route in ("/v1/models", "/metrics", "/version", "/nowhere"):
        for header in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic secret-1"}):
            status, body = await frontend.get(route, headers=header)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key"), (route, header)
    for key in ("secret-1", "secret-2"):
        status, _ = await frontend.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert status == 200
    assert (await frontend.get("/livez"))[0] == 200
    assert (await frontend.get("/readyz"))[0] == 200


async def test_callers_with_different_keys_share_no_cached_prefix(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(api_key=("one", "two"))))
    for key, salt in (("one", None), ("two", None), ("one", "s"), ("two", "s"), ("one", None)):
        for route, body in ((CHAT, QUESTION), (COMPLETIONS, {"prompt": "x", "max_tokens": 1})):
            headers = {"Authorization": f"Bearer {key}"}
            status, _ = await frontend.post(route, {**body, "cache_salt": salt}, headers=headers)
            assert status == 200
    salts = [request.cache_salt for request in frontend.engine.added]
    assert salts[::2] == salts[1::2]
    assert len(set(salts)) == 4 and salts[0] == salts[-1]
    assert all(salt is not None and "one" not in salt and "two" not in salt for salt in salts)


async def test_errors_have_one_shape(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(max_body_size=2000)))
    url = f"http://engined{CHAT}"
    json_type = {"Content-Type": "application/json"}
    cases: list[tuple[int, str, str, dict[str, object]]] = [
        (404, "GET", "http://engined/nope", {}),
        (405, "GET", url, {}),
        (415, "POST", url, {"data": b"{}", "headers": {"Content-Type": "text/plain"}}),
        (415, "POST", url, {"data": b"{}", "headers": {**json_type, "Content-Encoding": "gzip"}}),
        (413, "POST", url, {"data": b'"' + b"x" * 3000 + b'"', "headers": json_type}),
        (400, "POST", url, {"data": b"{nope", "headers": json_type}),
        (404, "POST", url, {"json": {**QUESTION, "model": "other"}}),
        (404, "GET", "http://engined/v1/models/a/b", {}),
    ]
    for status, method, address, arguments in cases:
        async with frontend.client.request(method, address, **arguments) as response:  # type: ignore[arg-type]
            body = await response.json()
            assert response.status == status, (address, body)
            assert response.headers["x-request-id"].startswith("req_")
        error = body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["code"], str) and error["type"] == "invalid_request_error"


async def test_request_id_is_a_label_only(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    for given, is_kept in (("my-id.1", True), ("a b", False), ("x" * 65, False)):
        async with frontend.client.post(
            f"http://engined{CHAT}", json=QUESTION, headers={"X-Request-Id": given}
        ) as response:
            assert (response.headers["x-request-id"] == given) is is_kept
            assert given not in (await response.json())["id"]


async def test_models_version_and_cache_reset(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(config=Config(model=ModelConfig(served_model_name=("a/b", "c"))))
    _, models = await frontend.get("/v1/models")
    assert [card["id"] for card in models["data"]] == ["a/b", "c"]
    status, card = await frontend.get("/v1/models/a/b")
    assert (status, card["max_model_len"]) == (200, 512)
    _, answer = await frontend.post(CHAT, {**QUESTION, "model": "c"})
    assert answer["model"] == "a/b"
    assert (await frontend.get("/version"))[1]["version"]
    assert (await frontend.post("/reset_prefix_cache", {}))[0] == 200
    frontend.engine.utility_error = "busy"
    status, body = await frontend.post("/reset_prefix_cache", {})
    assert (status, body["error"]["message"]) == (500, "reset_prefix_cache: busy")


async def test_metrics(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    _, whole = await frontend.post(CHAT, {**QUESTION, "n": 2})
    usage = whole["usage"]
    assert await frontend.metric("generation_tokens_total") == usage["completion_tokens"]
    assert await frontend.metric("prompt_tokens_total") == 2 * usage["prompt_tokens"]
    assert await frontend.metric("request_success_total") == 2
    assert await frontend.metric("time_to_first_token_seconds_count") == 2
    assert await frontend.metric("inter_token_latency_seconds_count") == usage["completion_tokens"] - 2
    assert await frontend.metric("kv_cache_usage_perc") == 0.25
    assert await frontend.metric("prefix_cache_hits_total") == 4


async def test_log_line_without_content(start_frontend: StartFrontend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="engined")
    frontend = await start_frontend()
    await frontend.post(CHAT, QUESTION)
    lines = [record.getMessage() for record in caplog.records if "chatcmpl-" in record.getMessage()]
    assert len(lines) == 1 and ": stop; " in lines[0]
    assert "France" not in caplog.text


def test_the_frontend_needs_no_torch() -> None:
    """In a process of its own, because other tests import torch."""
    code = "import sys, engined.frontend.main; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0
