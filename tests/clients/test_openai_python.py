"""OpenAI's own Python client against a real server: its helpers, its streams and its exceptions."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.end_to_end.server import Server

QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
}
ANSWER = "The capital of France is Paris."
PROMPT: dict[str, Any] = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def client(default_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{default_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    [card] = client.models.list().data
    assert client.models.retrieve(card.id) == card
    return card.id


def test_chat_stream_helper(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, logprobs=True, **QUESTION)
    options = {"include_usage": True}
    events = []
    with client.chat.completions.stream(model=model, logprobs=True, stream_options=options, **QUESTION) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "content.delta"]
    assert "".join(event.delta for event in deltas) == deltas[-1].snapshot == ANSWER
    assert [event.content for event in events if event.type == "content.done"] == [ANSWER]
    [logprobs] = [event.content for event in events if event.type == "logprobs.content.done"]
    [choice], [expected] = final.choices, whole.choices
    assert choice.message.content == expected.message.content == ANSWER
    assert (choice.finish_reason, final.model, final.object) == (expected.finish_reason, whole.model, whole.object)
    assert expected.logprobs is not None and expected.logprobs.content is not None
    assert [item.token for item in logprobs] == [item.token for item in expected.logprobs.content]
    assert final.usage is not None and whole.usage is not None
    assert final.usage.completion_tokens == whole.usage.completion_tokens == len(logprobs)
    assert final.usage.prompt_tokens == whole.usage.prompt_tokens


def test_chat_choices_in_one_stream(client: openai.OpenAI, model: str) -> None:
    messages = [{"role": "user", "content": "Tell me about the sea."}]
    # The helper raises where a choice ends by its length.
    body = QUESTION | {"messages": messages, "temperature": 1, "seed": 5, "n": 2, "stop": "."}
    whole = client.chat.completions.create(model=model, **body)
    with client.chat.completions.stream(model=model, **body) as stream:
        final = stream.get_final_completion()
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.message.content for choice in final.choices] == texts
    assert texts[0] != texts[1]


def test_completions(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, logprobs=1, echo=True, **PROMPT)
    [choice] = whole.choices
    assert choice.text.startswith("The capital of France is Paris")
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None and choice.logprobs.tokens is not None and whole.usage is not None
    assert len(choice.logprobs.tokens) == whole.usage.total_tokens
    chunks = list(client.completions.create(model=model, logprobs=1, echo=True, stream=True, **PROMPT))
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    streamed = [chunk.choices[0].logprobs for chunk in chunks]
    assert [value for part in streamed if part for value in part.token_logprobs or []] == (
        choice.logprobs.token_logprobs
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]


def test_raw_response_names_its_request(client: openai.OpenAI, model: str) -> None:
    raw = client.chat.completions.with_raw_response.create(model=model, max_tokens=1, **QUESTION)
    assert raw.headers["x-request-id"] == raw.parse()._request_id
    with client.chat.completions.with_streaming_response.create(
        model=model, max_tokens=1, stream=True, **QUESTION
    ) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert list(response.iter_lines())[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize(
    ("error", "code", "param", "changes"),
    [
        (openai.NotFoundError, "model_not_found", "model", {"model": "gpt-nowhere"}),
        (openai.BadRequestError, None, "temperature", {"temperature": 3}),
        (openai.BadRequestError, "unknown_parameter", "temprature", {"extra_body": {"temprature": 0}}),
        (openai.BadRequestError, "invalid_type", "messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
        (
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
            {"messages": [{"role": "user", "content": "word " * 10_000}]},
        ),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_errors(
    client: openai.OpenAI,
    model: str,
    error: type[openai.APIStatusError],
    code: str | None,
    param: str,
    changes: dict[str, Any],
    is_streamed: bool,
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(stream=is_streamed, **{"model": model, **QUESTION, **changes})
    assert (caught.value.code, caught.value.param, caught.value.type) == (code, param, "invalid_request_error")
    assert caught.value.request_id


async def test_async_client(default_server: Server, model: str) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{default_server.url}/v1", api_key="none") as client,
        client.chat.completions.stream(model=model, **QUESTION) as stream,
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER
