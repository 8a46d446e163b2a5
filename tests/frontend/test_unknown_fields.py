"""Fields that nobody knows: refused with the nearest name, or with --unknown-fields warn left out and named."""

import json
from typing import Any

import pytest

from engined.config.schema import Config, ServerConfig
from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest
from engined.frontend.api.parser import MAX_UNKNOWN_FIELDS, BodyParser
from tests.frontend.conftest import StartFrontend

PARSER = BodyParser(ChatCompletionRequest, "warn")
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "é", "colour": 1}], "mood": "calm"}]


def parse(**fields: Any) -> tuple[ChatCompletionRequest, list[str]]:
    return PARSER.parse_with_warnings(json.dumps({"messages": MESSAGES, **fields}).encode())


def test_unknown_fields_are_left_out_at_every_depth() -> None:
    request, ignored = parse(
        **{"guided_jsn": {"a": [1]}, "stream_options": {"include_usag": True}, "seed": 7, "x`y": 1}
    )
    assert sorted(ignored) == [
        "guided_jsn",
        "messages[0].content[0].colour",
        "messages[0].mood",
        "stream_options.include_usag",
        "x`y",
    ]
    assert (request.seed, request.messages[0].content[0].text) == (7, "é")  # type: ignore[index, union-attr]


def test_what_is_known_is_checked_as_strictly_as_ever() -> None:
    for fields, param in (
        ({"nope": 1, "temperature": "1"}, "temperature"),
        ({"nope": 1, "tools": [{}]}, "tools[0].type"),
    ):
        with pytest.raises(RequestError) as caught:
            parse(**fields)
        assert caught.value.param == param


def test_unknown_fields_are_bounded() -> None:
    for fields in (
        {f"f{number}": 1 for number in range(MAX_UNKNOWN_FIELDS + 1)},
        {"deep": json.loads("[" * 70 + "]" * 70)},
    ):
        with pytest.raises(RequestError):
            parse(**fields)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_warning_header(start_frontend: StartFrontend, is_stream: bool) -> None:
    frontend = await start_frontend(config=Config(server=ServerConfig(unknown_fields="warn")))
    body = {"prompt": "x", "max_tokens": 1, "temperatur": 1, "naïve\r\n": 2, "stream": is_stream}
    async with frontend.client.post("http://engined/v1/completions", json=body) as response:
        assert response.status == 200
        assert response.headers["x-engined-warning"] == "unknown fields were ignored: temperatur, na?ve??"
        await response.read()
    async with frontend.client.post("http://engined/v1/completions", json={"prompt": "x"}) as response:
        assert "x-engined-warning" not in response.headers
    async with frontend.client.post("http://engined/v1/completions", json={"prompt": "", "nope": 1}) as response:
        assert (response.status, response.headers["x-engined-warning"][-4:]) == (400, "nope")
