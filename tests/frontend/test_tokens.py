"""/tokenize, /detokenize, /v1/chat/completions/render and the model cards, in front of a scripted engine."""

import io
import json
from typing import Any

from engined.config.schema import Config, ModelConfig
from engined.frontend.rendering.renderer import MAX_FREE_BYTES
from engined.tokenization.tokenizer import ModelTokenizer
from tests.frontend.conftest import StartFrontend

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is <|im_end|> 你好?"}]


async def test_text_to_ids_and_back(start_frontend: StartFrontend, tokenizer: ModelTokenizer) -> None:
    frontend = await start_frontend()
    text = "Hello, 你好 👩‍👩‍👧\n"
    for prefix in ("", "/v1"):
        status, tokenized = await frontend.post(f"{prefix}/tokenize", {"prompt": text, "return_token_strs": True})
        assert status == 200
        assert tokenized["tokens"] == tokenizer.encode(text)
        assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"])
        assert tokenized["max_model_len"] == 512
        assert tokenized["token_strs"][0] == "Hello"
        assert await frontend.post(f"{prefix}/detokenize", {"tokens": tokenized["tokens"]}) == (200, {"prompt": text})
    assert (await frontend.post("/tokenize", {"prompt": ""}))[1]["tokens"] == []
    assert await frontend.post("/detokenize", {"tokens": []}) == (200, {"prompt": ""})


async def test_the_ids_are_those_that_generation_computes(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    variants: list[dict[str, Any]] = [
        {},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"add_special_tokens": False},
    ]
    for extra in variants:
        body = {"messages": MESSAGES, **extra}
        status, answer = await frontend.post("/v1/chat/completions", {**body, "return_token_ids": True})
        assert status == 200, answer
        computed = frontend.engine.added.pop()
        _, tokenized = await frontend.post("/tokenize", body)
        _, rendered = await frontend.post("/v1/chat/completions/render", body)
        assert tokenized["tokens"] == rendered["token_ids"] == computed.prompt_token_ids == answer["prompt_token_ids"]
        assert tokenized["count"] == rendered["count"] == answer["usage"]["prompt_tokens"]
        assert "Be brief." in rendered["prompt"] and tokenized["token_strs"] is None
    assert frontend.engine.added == []


async def test_what_is_too_long_to_generate_can_be_counted(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(max_model_len=64)
    messages = [{"role": "user", "content": "word " * 500}]
    status, tokenized = await frontend.post("/tokenize", {"messages": messages})
    assert status == 200 and tokenized["count"] > 500 > tokenized["max_model_len"] == 64
    for route in ("/v1/chat/completions", "/v1/chat/completions/render"):
        status, refused = await frontend.post(route, {"messages": messages})
        assert status == 400 and refused["error"]["code"] == "context_length_exceeded"
    status, truncated = await frontend.post(
        "/v1/chat/completions/render", {"messages": messages, "truncate_prompt_tokens": 10}
    )
    assert status == 200 and truncated["count"] == 10


TOOLS = [{"type": "function", "function": {"name": "roll_dice"}}]
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
    ("/tokenize", {"prompt": ["a"]}, "prompt"),
    ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
    ("/tokenize", {"prompt": "a", "promt": "a"}, "promt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"messages": [{"role": "tool", "content": "1"}]}, "messages[0].tool_call_id"),
    ("/tokenize", {"messages": MESSAGES, "tools": []}, "tools"),
    ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
    ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [10**6]}, "tokens"),
    ("/detokenize", {"tokens": [2**64]}, "tokens"),
    ("/detokenize", {"tokens": [True]}, "tokens[0]"),
    ("/tokenize", {"prompt": "a", "tools": TOOLS}, "tools"),
    ("/v1/chat/completions/render", {"messages": MESSAGES, "tools": [{}]}, "tools[0].type"),
]


async def test_tools_count(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    body = {"messages": MESSAGES, "tools": TOOLS}
    _, tokenized = await frontend.post("/tokenize", body)
    _, rendered = await frontend.post("/v1/chat/completions/render", body)
    _, completed = await frontend.post("/v1/chat/completions", body)
    _, without = await frontend.post("/tokenize", {"messages": MESSAGES})
    assert tokenized["tokens"] == rendered["token_ids"] and "roll_dice" in rendered["prompt"]
    assert tokenized["count"] == completed["usage"]["prompt_tokens"] > without["count"]


async def test_faults_name_the_field(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    for route, body, param in FAULTS:
        status, answer = await frontend.post(route, body)
        assert status == 400 and answer["error"]["param"] == param, (route, body, answer)
    large = io.BytesIO(json.dumps({"prompt": "a" * (MAX_FREE_BYTES + 1)}).encode())
    headers = {"Content-Type": "application/json"}
    async with frontend.client.post("http://engined/tokenize", data=large, headers=headers) as response:
        assert response.status == 400
        assert "split it" in (await response.json())["error"]["message"]


async def test_another_model_is_unknown(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    bodies: dict[str, dict[str, Any]] = {
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [1]},
        "/v1/chat/completions/render": {"messages": MESSAGES},
    }
    for route, body in bodies.items():
        status, answer = await frontend.post(route, {"model": "other", **body})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_cards_say_what_the_model_can_do(start_frontend: StartFrontend) -> None:
    names = ("org/smol", "smol")
    frontend = await start_frontend(config=Config(model=ModelConfig(served_model_name=names)))
    _, listed = await frontend.get("/v1/models")
    assert [card["id"] for card in listed["data"]] == list(names)
    status, card = await frontend.get("/v1/models/org/smol")
    assert status == 200 and card == listed["data"][0]
    assert card["max_model_len"] == 512 and card["runner"] == "generate"
    able = {name for name, is_able in card["capabilities"].items() if is_able}
    assert able == {"chat", "completions", "structured_outputs", "tools"}
    assert (await frontend.get("/v1/models/org%2Fsmol"))[1] == card
    assert (await frontend.get("/v1/models/org"))[0] == 404
