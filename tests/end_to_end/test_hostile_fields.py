"""Values out of range or of the wrong type: each a 4xx that names the field, and the neighbour never notices."""

from typing import Any

import pytest

from tests.end_to_end.server import Server

HUGE = 10**30
BAD_VALUES: dict[str, list[Any]] = {
    "temperature": [-0.1, 2.1, True, "1", 1e39, [], {}],
    "top_p": [0, -1, 1.1, True, "0.5"],
    "top_k": [-2, 1.5, "5", True, HUGE],
    "min_p": [-0.1, 1.1, "x"],
    "repetition_penalty": [0, -1, 1e39, "1"],
    "presence_penalty": [-2.1, 2.1, None.__class__.__name__],
    "frequency_penalty": [-2.1, 2.1, [1]],
    "max_tokens": [-1, 2**63, 1e308, True, "5", 1.5],
    "min_tokens": [-1, 17, True, "1"],
    "n": [0, -1, 10**9, True, "2"],
    "logprobs": [-2, 10**6, "1"],
    "prompt_logprobs": [-2, 10**6, True],
    "logit_bias": [{"-1": 1}, {"49152": 1}, {"x": 1}, {"5": 101}, {"5": "1"}, {str(i): 1 for i in range(2000)}, []],
    "stop": ["", [""], ["x"] * 1000, ["x" * 10**5], 5, [5]],
    "stop_token_ids": [[-1], [49152], ["5"], 5, [HUGE], [True]],
    "allowed_token_ids": [[], [-1], [49152], ["x"]],
    "bad_words": [[""], ["x"] * 1000, "x", [5]],
    "seed": [2**64, 1.5, "1", True],
    "ignore_eos": ["true", 1],
    "stream": ["true", 1],
    "echo": ["true", 1],
    "prompt": ["", [], [[]], [-1], [49152], [1.5], [True], ["a", 5], ["x"] * 1000, {"a": 1}, [1] * 20000],
    "model": ["../../etc/passwd", "x" * 100_000, 5],
    "priority": [1, "1", 2**40],
    "cache_salt": ["", "x" * 1000, "a/b", 5],
    "truncate_prompt_tokens": [0, -2, "1"],
    "stream_options": [{"include_usage": True}, 5],
    "suffix": ["x"],
    "best_of": [2],
    "tempratur": [1],
    "response_format": [{"type": "json_object"}],
}


@pytest.mark.parametrize("field", BAD_VALUES)
def test_each_bad_value_is_refused_and_named(default_server: Server, field: str) -> None:
    for value in BAD_VALUES[field]:
        body = {"prompt": "Hello", "max_tokens": 16, "temperature": 0} | {field: value}
        status, answer = default_server.post("/v1/completions", body)
        assert 400 <= status < 500, (field, str(value)[:60], status, answer)
        assert set(answer) == {"error"}
        error = answer["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert field in f"{error['param']} {error['message']}", (field, str(value)[:60], error)
    text = default_server.complete(prompt="The capital of France is", max_tokens=4, temperature=0)
    assert "Paris" in text["choices"][0]["text"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"prompt": "a", "temperature": NaN}', 400),
        (b'{"prompt": "a", "temperature": 1e400}', 400),
        (b'{"prompt": "\xff"}', 400),
        (b'\xef\xbb\xbf{"prompt": "a"}', 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b'{"logit_bias":' * 65 + b"1" + b"}" * 65, 400),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400),
        (b'{"prompt": "' + b"a" * (5 << 20) + b'"}', 413),
        (b'{"prompt": "' + b"a" * (3 << 20) + b'"}', 400),
    ],
)
def test_bodies_that_are_not_requests(default_server: Server, body: bytes, status: int) -> None:
    assert default_server.post("/v1/completions", body)[0] == status
    assert default_server.get("/health")[0] == 200
