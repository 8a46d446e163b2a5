"""Every field of both bodies with hostile values: a 400 that names the field, never a 500, and never silence."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from engined.frontend.api.chat import ChatCompletionRequest, ChatMessage, ContentPart
from engined.frontend.api.completions import CompletionRequest
from engined.frontend.api.fields import MAX_CHOICES, GenerationFields
from tests.frontend.conftest import RunningFrontend, StartFrontend

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    COMPLETIONS: {"prompt": "hi", "max_tokens": 2},
}
TYPES = {CHAT: ChatCompletionRequest, COMPLETIONS: CompletionRequest}
DEEP = json.loads("[" * 60 + "]" * 60)
NASTY: list[Any] = [
    *(True, False, 0, 1, -1, -(2**63), 2**63, 2**64 - 1, 0.5, -0.5, 1e39, 1e308, "", "5", "x" * 300, "\0"),
    *([], [1], [-1], [10**9], ["x"], [""], [None], [[]], ["a"] * 300, list(range(3000)), DEEP),
    *({}, {"a": 1}, {"1": 1}, {"1": 1e39}, {"-1": 0}, {"99999999": 1}, {str(i): 0 for i in range(2000)}),
]


async def answer(frontend: RunningFrontend, route: str, body: Any) -> tuple[int, dict[str, Any]]:
    status, data = await frontend.post(route, body)
    return status, data.get("error") or {}


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
async def test_nasty_values_are_refused_by_name(start_frontend: StartFrontend, route: str) -> None:
    frontend = await start_frontend()
    for field in msgspec.structs.fields(TYPES[route]):
        for value in NASTY:
            if field.name == "stream" and value is True:
                continue
            status, error = await answer(frontend, route, {**BASE[route], field.name: value})
            where = (field.name, repr(value)[:60], status, error)
            assert status in (200, 400) or (status == 404 and field.name == "model"), where
            if status == 400:
                root = error["param"].split(".")[0].split("[")[0]
                # Two fields contradict each other in these cases, and the other one is named.
                related = {"max_completion_tokens": "min_tokens", "max_tokens": "min_tokens", "best_of": "best_of"}
                assert root in (field.name, related.get(field.name)), where
                assert field.name in error["message"] or root in error["message"], where
    status, _ = await answer(frontend, route, BASE[route])
    assert status == 200


BAD: list[tuple[str, list[Any]]] = [
    ("temperature", [-0.1, 2.1, True, "1", 1e39]),
    ("top_p", [0, 1.1, -1, True]),
    ("top_k", [-2, 2**40, 1.5, True]),
    ("min_p", [-0.1, 1.1]),
    ("repetition_penalty", [0, -1, 1e39]),
    ("presence_penalty", [-2.1, 2.1]),
    ("frequency_penalty", [-2.1, 2.1]),
    ("max_tokens", [-1, 2**63, 1e308, True, "5"]),
    ("min_tokens", [-1, 3, 2**40]),
    ("n", [0, -1, MAX_CHOICES + 1, 10**9, True, 1.0]),
    ("stop", ["", [""], ["x"] * 17, "x" * 257, 5, [5]]),
    ("seed", [2**63, 1.5, "x"]),
    ("logit_bias", [{"x": 1}, {"-1": 1}, {"99999": 1}, {"1": 101}, {"1": True}, {str(i): 0 for i in range(1025)}]),
    ("stop_token_ids", [[-1], [99999], [1.5], list(range(1025)), 5]),
    ("allowed_token_ids", [[], [-1], [99999]]),
    ("bad_words", [[""], [" "], ["x"] * 65, ["x" * 300], "x"]),
    ("prompt_logprobs", [-1, 21, True]),
    ("priority", [1, -1, 2**40]),
    ("cache_salt", ["", "a b", "x" * 65, "é", 5]),
    ("request_id", ["", "a b", "x\r\n"]),
    ("truncate_prompt_tokens", [0, -2, 2**40]),
    ("truncation_side", ["middle"]),
    ("stream_interval", [0, 1025]),
    ("stream_options", [{"include_usage": True}, {}, {"nope": 1}]),
    (
        "response_format",
        [
            {"type": "xml"},
            {"type": "json_schema", "json_schema": {}},
            {"typ": "text"},
            {"type": "text", "triggers": []},
        ],
    ),
    ("best_of", [2]),
    ("use_beam_search", [True]),
    (
        "structured_outputs",
        [{}, {"regex": "("}, {"regex": "a", "choice": ["a"]}, {"choice": []}, {"json": "x"}, {"json": []}],
    ),
    ("guided_json", [{}]),
    ("metadata", [{"a": 1}]),
]
BAD_ON_ROUTE: list[tuple[str, str, list[Any]]] = [
    (
        CHAT,
        "messages",
        [[], "x", [{}], [{"role": "user"}], [{"role": "robot", "content": "x"}], [{"role": "tool", "content": "x"}]],
    ),
    (
        CHAT,
        "messages",
        [[{"role": "user", "content": 5}], [{"role": "user", "content": []}], [{"role": "user", "contnt": "x"}]],
    ),
    (CHAT, "messages", [[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]]),
    (
        CHAT,
        "messages",
        [[{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": "x", "name": "\0"}]],
    ),
    (CHAT, "messages", [[{"role": "assistant", "content": "x", "tool_calls": [{}]}]]),
    (CHAT, "tools", [[], [{"type": "function"}]]),
    (CHAT, "max_completion_tokens", [0, -1]),
    (CHAT, "max_tokens", [0]),
    (CHAT, "top_logprobs", [1, 21, -1]),
    (CHAT, "modalities", [["audio"], []]),
    (CHAT, "tool_choice", ["required", {"type": "function"}]),
    (CHAT, "chat_template_kwargs", [{"tokenize": True}, {"messages": 1}, {"x": [1]}]),
    (CHAT, "chat_template", ["{{ 1 }}"]),
    (CHAT, "reasoning_effort", ["extreme", ""]),
    (
        COMPLETIONS,
        "prompt",
        ["", [], [""], [[]], ["x"] * 65, ["x", 1], [[1], "x"], [-1], [49152], [[1], [-1]], [True], [1.5], 5],
    ),
    (COMPLETIONS, "suffix", ["x"]),
    (COMPLETIONS, "logprobs", [-1, 21, True]),
    (COMPLETIONS, "messages", [[]]),
]


def cases() -> list[tuple[str, str, Any]]:
    shared = [(route, name, value) for route in (CHAT, COMPLETIONS) for name, values in BAD for value in values]
    return shared + [(route, name, value) for route, name, values in BAD_ON_ROUTE for value in values]


async def test_bad_values_are_all_refused(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    for route, name, value in cases():
        status, error = await answer(frontend, route, {**BASE[route], name: value})
        assert status == 400, (route, name, repr(value)[:60], error)
        assert error["param"].split(".")[0].split("[")[0] == name, (name, value, error)
        assert name in error["message"]
        assert len(error["message"]) < 400


async def test_harmless_values_are_accepted(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    harmless: dict[str, Any] = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "response_format": {"type": "text"},
        "spaces_between_special_tokens": True,
        "best_of": 1,
        "stop": None,
        "seed": -1,
        "logit_bias": {},
        "request_id": "mine",
    }
    for route in (CHAT, COMPLETIONS):
        assert (await answer(frontend, route, {**BASE[route], **harmless}))[0] == 200
        nulls = {field.name: None for field in msgspec.structs.fields(TYPES[route]) if field.name not in BASE[route]}
        assert (await answer(frontend, route, {**BASE[route], **nulls}))[0] == 200
    chat_only = {"tool_choice": "none", "tools": None, "modalities": ["text"], "max_completion_tokens": 1}
    assert (await answer(frontend, CHAT, {**BASE[CHAT], **chat_only}))[0] == 200
    assert frontend.engine.added[-1].sampling.max_tokens == 1


async def test_unknown_fields_name_the_nearest(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    for body, param, nearest in (
        ({"temperatur": 1}, "temperatur", "temperature"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "messages[0].contents", "content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "txt": "x"}]}]},
            "messages[0].content[0].txt",
            "text",
        ),
        ({"stream": True, "stream_options": {"include_usag": True}}, "stream_options.include_usag", "include_usage"),
    ):
        status, error = await answer(frontend, CHAT, {**BASE[CHAT], **body})
        assert (status, error["code"], error["param"]) == (400, "unknown_parameter", param)
        assert error["message"].endswith(f"did you mean {nearest}?")
    _, error = await answer(frontend, CHAT, {**BASE[CHAT], "qqq": 1})
    assert error["param"] == "qqq" and "did you mean" not in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xef\xbb\xbf{}",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e400}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"tools": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"tools": ' + b'{"a":' * 65 + b"1" + b"}" * 65 + b', "messages": []}',
        b'{"' + b"x" * 1_000_000 + b'": 1}',
    ],
)
async def test_hostile_bodies(start_frontend: StartFrontend, body: bytes) -> None:
    frontend = await start_frontend()
    headers = {"Content-Type": "application/json"}
    async with frontend.client.post(f"http://engined{CHAT}", data=body, headers=headers) as response:
        error = (await response.json())["error"]
        assert response.status == 400 and len(error["message"]) < 300
    assert (await answer(frontend, CHAT, BASE[CHAT]))[0] == 200


async def test_prompts_that_cannot_fit(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(max_model_len=64)
    for prompt in ([5] * 64, "word " * 64, "word " * 50_000):
        status, error = await answer(frontend, COMPLETIONS, {"prompt": prompt})
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
        assert "64" in error["message"]
    assert (await answer(frontend, COMPLETIONS, {"prompt": [5] * 63}))[0] == 200
    assert frontend.engine.added[-1].sampling.max_tokens == 1
    body = {"messages": [{"role": "user", "content": "word " * 64}]}
    status, error = await answer(frontend, CHAT, body)
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


async def test_a_long_tokenization_does_not_block_the_loop(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(max_model_len=8192)
    hostile = asyncio.create_task(answer(frontend, COMPLETIONS, {"prompt": "a" * 600_000}))
    num_answers = 0
    while not hostile.done():
        assert (await frontend.get("/livez"))[0] == 200
        num_answers += 1
    assert hostile.result()[0] == 400
    assert num_answers > 10


async def test_contradictions(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    both = {"add_generation_prompt": True, "continue_final_message": True}
    status, error = await answer(frontend, CHAT, {**BASE[CHAT], **both})
    assert (status, error["param"]) == (400, "continue_final_message")
    assert (await answer(frontend, COMPLETIONS, {"prompt": "x", "min_tokens": 17}))[1]["param"] == "min_tokens"


def test_types_of_the_two_bodies_agree() -> None:
    assert issubclass(ChatCompletionRequest, GenerationFields) and issubclass(CompletionRequest, GenerationFields)
    assert ChatMessage.__struct_config__.forbid_unknown_fields and ContentPart.__struct_config__.forbid_unknown_fields
