"""Streamed and not streamed: the same text, for prompts and stop strings of every script."""

import json
import random
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.end_to_end.server import Server

WORDS = [
    "hello",
    "Zürich",
    "東京",
    "日本語",
    "🙂",
    "👩‍👩‍👧",
    "नमस्ते",
    "\n",
    "  ",
    "π≈3.14",
    "the",
    "and",
    "é",
    "中文字",
    "🇫🇷",
    "ok",
]
STOPS = [["."], ["the"], ["\n"], [" a", "e "], ["，", "。"], ["🙂"], [","], ["ing to", "tion of"]]
NUM_PROMPTS = 200


def make_body(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    return {
        "prompt": " ".join(rng.choices(WORDS, k=rng.randrange(1, 12))),
        "max_tokens": rng.randrange(1, 17),
        "temperature": rng.choice((0.0, 1.0, 1.8)),
        "seed": seed,
        "stop": rng.choice(STOPS) if rng.random() < 0.6 else None,
        "include_stop_str_in_output": rng.random() < 0.3,
        "logprobs": 2 if rng.random() < 0.2 else None,
    }


def stream_text(server: Server, body: dict[str, Any]) -> tuple[str, str]:
    """Concatenated text and finish reason of a streamed completion."""
    request = urllib.request.Request(
        server.url + "/v1/completions",
        data=json.dumps(body | {"stream": True}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=180) as response:
        events = [line[6:].strip() for line in response if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(reasons) == 1
    assert all("�" not in choice["text"] for choice in choices[:-1])
    return "".join(choice["text"] for choice in choices), reasons[0]


def check(server: Server, seed: int) -> bool:
    """Compare both ways for one random request; returns whether a stop string ended it."""
    body = make_body(seed)
    choice = server.complete(**body)["choices"][0]
    assert stream_text(server, body) == (choice["text"], choice["finish_reason"]), body
    if body["stop"] and not body["include_stop_str_in_output"]:
        assert not any(stop in choice["text"] for stop in body["stop"]), body
    return isinstance(choice["stop_reason"], str)


def test_streamed_text_equals_the_whole_text(exact_server: Server) -> None:
    with ThreadPoolExecutor(16) as pool:
        stopped = list(pool.map(lambda seed: check(exact_server, seed), range(NUM_PROMPTS)))
    assert sum(stopped) >= 10  # the stop strings did come up
