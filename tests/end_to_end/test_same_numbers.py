"""However a request is put, and whatever the prefix cache holds, its log-probabilities are the plain request's."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import reference
from tests.end_to_end.server import Server

TEXT = (
    "The quick brown fox jumps over the lazy dog while the old king counts his golden coins in the tower by the sea. "
)
NUM_TOKENS = 6
TOLERANCE = 2e-5
"""A prompt that is computed in other pieces is added up in another order, and fp32 is not associative."""


@pytest.fixture(scope="module")
def ids(default_gguf: Path) -> list[int]:
    """Exactly four blocks of the KV cache: a full hit leaves no odd tail to compute."""
    [ids] = reference.encode(default_gguf, [TEXT * 4])
    return ids[:64]


@pytest.fixture(scope="module")
def plain(exact_server: Server, ids: list[int]) -> dict[str, Any]:
    """The choice that the others are compared with; nothing of its prompt was cached."""
    body = ask(exact_server, ids, cache_salt="plain", logprobs=3, prompt_logprobs=3)
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    choice: dict[str, Any] = body["choices"][0]
    return choice


def ask(server: Server, ids: list[int], **fields: Any) -> dict[str, Any]:
    defaults = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return server.complete(prompt=ids, **(defaults | fields))


def close(values: list[float]) -> Any:
    return pytest.approx(values, abs=TOLERANCE)


def flat_prompt(entries: list[dict[str, Any] | None]) -> list[tuple[str, float]]:
    """Token and log-probability of everything that prompt_logprobs reports."""
    assert entries[0] is None
    return [(token, item["logprob"]) for entry in entries[1:] if entry for token, item in sorted(entry.items())]


def check_prompt(entries: list[dict[str, Any] | None], plain: dict[str, Any]) -> None:
    found, expected = flat_prompt(entries), flat_prompt(plain["prompt_logprobs"])
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [value for _, value in found] == close([value for _, value in expected])


def test_a_full_hit(exact_server: Server, ids: list[int], plain: dict[str, Any]) -> None:
    for expected_hits in (0, 48, 48):  # of 64 tokens the last block is computed again, for its logits
        body = ask(exact_server, ids, cache_salt="hit", logprobs=3)
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == expected_hits
        [choice] = body["choices"]
        assert choice["token_ids"] == plain["token_ids"]
        assert choice["logprobs"]["token_logprobs"] == close(plain["logprobs"]["token_logprobs"])
        for found, expected in zip(choice["logprobs"]["top_logprobs"], plain["logprobs"]["top_logprobs"], strict=True):
            assert found == pytest.approx(expected, abs=TOLERANCE)


def test_prompt_logprobs_of_a_cached_prompt(exact_server: Server, ids: list[int], plain: dict[str, Any]) -> None:
    ask(exact_server, ids, cache_salt="scored")
    for num_alternatives in (3, 0):
        [choice] = ask(exact_server, ids, cache_salt="scored", prompt_logprobs=num_alternatives)["choices"]
        assert choice["token_ids"] == plain["token_ids"]
        if num_alternatives:
            check_prompt(choice["prompt_logprobs"], plain)
        else:
            actual = [entry[str(token)] for token, entry in zip(ids[1:], plain["prompt_logprobs"][1:], strict=True)]
            found = [entry[str(token)] for token, entry in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)]
            assert all(len(entry) == 1 for entry in choice["prompt_logprobs"][1:])
            assert [item["logprob"] for item in found] == close([item["logprob"] for item in actual])
            assert [item["rank"] for item in found] == [item["rank"] for item in actual]


def test_echo_with_and_without_tokens(exact_server: Server, ids: list[int], plain: dict[str, Any]) -> None:
    prompt_values = [
        entry[str(token)]["logprob"] for token, entry in zip(ids[1:], plain["prompt_logprobs"][1:], strict=True)
    ]
    texts = []
    for max_tokens in (0, NUM_TOKENS):
        for salt in ("echo", None):
            fields = {"echo": True, "logprobs": 0, "max_tokens": max_tokens, "cache_salt": salt}
            [choice] = ask(exact_server, ids, **fields)["choices"]
            values = choice["logprobs"]["token_logprobs"]
            assert values[0] is None and len(values) == len(ids) + max_tokens
            assert values[1 : len(ids)] == close(prompt_values)
            assert values[len(ids) :] == close(plain["logprobs"]["token_logprobs"][:max_tokens])
            texts.append(choice["text"])
    prompt_text = texts[0]
    assert prompt_text.startswith(TEXT)
    assert texts == [prompt_text] * 2 + [prompt_text + plain["text"]] * 2


def test_logprobs_zero(exact_server: Server, ids: list[int], plain: dict[str, Any]) -> None:
    [choice] = ask(exact_server, ids, logprobs=0)["choices"]
    assert choice["logprobs"]["token_logprobs"] == close(plain["logprobs"]["token_logprobs"])
    for value, top in zip(choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True):
        assert list(top.values()) == [value]  # the sampled token alone, with the identical float


def test_four_choices_with_a_seed(exact_server: Server, ids: list[int]) -> None:
    fields = {"temperature": 1.2, "logprobs": 2, "top_p": 0.95}
    choices = ask(exact_server, ids, seed=40, n=4, **fields)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert len({tuple(choice["token_ids"]) for choice in choices}) > 1
    for offset, choice in enumerate(choices):
        [alone] = ask(exact_server, ids, seed=40 + offset, cache_salt=f"seed-{offset}", **fields)["choices"]
        assert choice["token_ids"] == alone["token_ids"]
        assert choice["logprobs"]["token_logprobs"] == close(alone["logprobs"]["token_logprobs"])
        for value, top in zip(choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True):
            assert value in top.values()


def test_streamed(exact_server: Server, ids: list[int], plain: dict[str, Any]) -> None:
    fields = {"prompt": ids, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    chunks = stream(exact_server, "/v1/completions", fields | {"logprobs": 3, "prompt_logprobs": 3})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == plain["text"]
    values = [value for choice in choices for value in choice["logprobs"]["token_logprobs"]]
    assert values == close(plain["logprobs"]["token_logprobs"])
    [scored] = [choice["prompt_logprobs"] for choice in choices if "prompt_logprobs" in choice]
    check_prompt(scored, plain)


def test_chat_is_a_completion_of_its_rendered_prompt(exact_server: Server) -> None:
    fields = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    chat_fields = {"messages": [{"role": "user", "content": TEXT}], "logprobs": True, "top_logprobs": 2}
    status, chat = exact_server.post("/v1/chat/completions", fields | chat_fields | {"prompt_logprobs": 1})
    assert status == 200
    body = exact_server.complete(prompt=chat["prompt_token_ids"], logprobs=2, prompt_logprobs=1, **fields)
    [choice], [expected] = chat["choices"], body["choices"]
    assert choice["token_ids"] == expected["token_ids"]
    content = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == close(expected["logprobs"]["token_logprobs"])
    assert all(entry["logprob"] in [top["logprob"] for top in entry["top_logprobs"]] for entry in content)
    check_prompt(chat["prompt_logprobs"], expected)
    chunks = stream(exact_server, "/v1/chat/completions", fields | chat_fields | {"prompt_logprobs": 1, "stream": True})
    [scored] = [chunk["prompt_logprobs"] for chunk in chunks if "prompt_logprobs" in chunk]
    check_prompt(scored, expected)


def stream(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream; its headers are those that proxies need."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=180) as response:
        assert response.headers["Cache-Control"] == "no-cache" and response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["x-request-id"].startswith("req_")
        events = [line[6:].strip() for line in response if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    return [json.loads(event) for event in events]
