"""The default model answers, over every door, streamed and not, and always the same."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from engined.client import Client
from tests.end_to_end.server import Server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
ENGINED = str(Path(sys.executable).with_name("engined"))


@pytest.fixture(params=["tcp", "uds"])
def openai_client(request: pytest.FixtureRequest, default_server: Server):
    if request.param == "tcp":
        http_client = httpx.Client()
    else:
        http_client = httpx.Client(transport=httpx.HTTPTransport(uds=str(default_server.uds)))
    with openai.OpenAI(base_url=default_server.url + "/v1", api_key="none", http_client=http_client) as client:
        yield client


def test_openai_client_not_streamed(openai_client: openai.OpenAI) -> None:
    model = openai_client.models.list().data[0].id
    answer = openai_client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_openai_client_streamed(openai_client: openai.OpenAI) -> None:
    model = openai_client.models.list().data[0].id
    chunks = list(openai_client.chat.completions.create(model=model, messages=QUESTION, temperature=0, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]


@pytest.mark.parametrize("door", ["tcp", "uds"])
@pytest.mark.parametrize("stream", [False, True])
def test_curl(default_server: Server, door: str, stream: bool) -> None:
    body = json.dumps({"messages": QUESTION, "temperature": 0, "stream": stream})
    socket_flags = ["--unix-socket", str(default_server.uds)] if door == "uds" else []
    url = default_server.url + "/v1/chat/completions"
    command = ["curl", "-sSN", *socket_flags, url, "-H", "Content-Type: application/json", "-d", body]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if not stream:
        choice = json.loads(output)["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")
        return
    events = [line.removeprefix("data: ") for line in output.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == ANSWER
    assert choices[-1]["finish_reason"] == "stop"


def test_engined_chat_keeps_the_conversation(default_server: Server) -> None:
    command = [ENGINED, "chat", "--uds", str(default_server.uds), "--temperature", "0"]
    turns = "What is the capital of France?\nWhat is the capital of Germany?\n"
    result = subprocess.run(command, input=turns, capture_output=True, text=True, timeout=60, check=True)
    assert ANSWER in result.stdout
    assert "Berlin" in result.stdout


def test_engined_complete(default_server: Server) -> None:
    command = [ENGINED, "complete", "The capital of France is", "--url", default_server.url]
    command += ["--temperature", "0", "--max-tokens", "4"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Paris" in result.stdout


def test_own_client(default_server: Server) -> None:
    client = Client(uds=default_server.uds)
    answer = client.chat(QUESTION, temperature=0)
    assert answer["choices"][0]["message"]["content"] == ANSWER
    chunks = client.chat(QUESTION, temperature=0, stream=True)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == ANSWER
