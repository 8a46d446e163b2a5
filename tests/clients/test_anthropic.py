"""Anthropic's own Python client against a real server. What its signatures lack (temperature) goes in `extra_body`."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.end_to_end.server import Server

QUESTION: dict[str, Any] = {
    "max_tokens": 40,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "extra_body": {"temperature": 0},
}
ANSWER = "The capital of France is Paris."
LONG_STORY = QUESTION | {"messages": [{"role": "user", "content": "Tell me a very long story."}], "max_tokens": 2000}


@pytest.fixture(scope="module")
def client(default_server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=default_server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: anthropic.Anthropic) -> str:
    return client.models.list().data[0].id


def prompt_tokens(usage: anthropic.types.Usage) -> int:
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def text_of(message: anthropic.types.Message) -> str:
    [block] = message.content
    assert block.type == "text"
    return block.text


def test_create(client: anthropic.Anthropic, model: str) -> None:
    count = client.messages.count_tokens(model=model, messages=QUESTION["messages"])
    message = client.messages.create(model=model, **QUESTION)
    assert text_of(message) == ANSWER
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    assert prompt_tokens(message.usage) == count.input_tokens
    assert message.id.startswith("msg_") and message._request_id is not None
    again = client.messages.create(model=model, **QUESTION)
    assert text_of(again) == ANSWER
    assert again.usage.cache_read_input_tokens and prompt_tokens(again.usage) == count.input_tokens
    assert again.usage.output_tokens == message.usage.output_tokens


def test_stream_helper_says_what_create_says(client: anthropic.Anthropic, model: str) -> None:
    for changes in ({}, {"max_tokens": 3}, {"stop_sequences": [" Paris"]}):
        whole = client.messages.create(model=model, **QUESTION | changes)
        with client.messages.stream(model=model, **QUESTION | changes) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == text_of(final) == text_of(whole)
        assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
        assert prompt_tokens(final.usage) == prompt_tokens(whole.usage)
        assert final.usage.output_tokens == whole.usage.output_tokens


def test_why_it_stopped(client: anthropic.Anthropic, model: str) -> None:
    cut = client.messages.create(model=model, **QUESTION | {"max_tokens": 3})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
    stopped = client.messages.create(model=model, stop_sequences=["nothing", " Paris"], **QUESTION)
    assert text_of(stopped) == "The capital of France is"
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " Paris")


def test_an_answer_that_was_begun_is_continued(client: anthropic.Anthropic, model: str) -> None:
    prefill = {"role": "assistant", "content": "The capital of France is"}
    message = client.messages.create(model=model, **QUESTION | {"messages": [*QUESTION["messages"], prefill]})
    assert text_of(message) == " Paris."
    count = client.messages.count_tokens(model=model, messages=[*QUESTION["messages"], prefill])
    assert count.input_tokens == prompt_tokens(message.usage)


def test_conversation_with_a_system_prompt(client: anthropic.Anthropic, model: str) -> None:
    first = client.messages.create(model=model, system="You are a helpful assistant.", **QUESTION)
    turns = [
        *QUESTION["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of Germany?"}]},
    ]
    block = {"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}}
    second = client.messages.create(model=model, system=[block], **QUESTION | {"messages": turns})
    assert "Berlin" in text_of(second)
    assert second.usage.cache_read_input_tokens
    texts = [{"role": turn["role"], "content": text} for turn, text in zip(turns, ("a", "b", "c"), strict=True)]
    blocks = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in texts]
    counts = {client.messages.count_tokens(model=model, messages=form).input_tokens for form in (texts, blocks)}
    assert len(counts) == 1


@pytest.mark.parametrize(
    ("error", "type", "changes"),
    [
        (anthropic.NotFoundError, "not_found_error", {"model": "claude-nowhere"}),
        (anthropic.BadRequestError, "invalid_request_error", {"max_tokens": 0}),
        (anthropic.BadRequestError, "invalid_request_error", {"extra_body": {"temperature": 3}}),
        (anthropic.BadRequestError, "invalid_request_error", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (
            anthropic.BadRequestError,
            "invalid_request_error",
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        ),
        (
            anthropic.BadRequestError,
            "invalid_request_error",
            {"messages": [{"role": "user", "content": "word " * 10_000}]},
        ),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_errors(
    client: anthropic.Anthropic,
    model: str,
    error: type[anthropic.APIStatusError],
    type: str,
    changes: dict[str, Any],
    is_streamed: bool,
) -> None:
    with pytest.raises(error) as caught:
        client.messages.create(stream=is_streamed, **{"model": model, **QUESTION, **changes})
    assert caught.value.type == type
    assert caught.value.api_message and caught.value.request_id


def test_client_that_leaves_a_stream(client: anthropic.Anthropic, model: str, default_server: Server) -> None:
    aborted = default_server.metric("engined:request_success_total", finished_reason="abort")
    with client.messages.create(model=model, stream=True, **LONG_STORY) as stream:
        for event in stream:
            if event.type == "content_block_delta":
                break
    default_server.wait_for_metric("engined:num_requests_running", 0)
    assert default_server.metric("engined:request_success_total", finished_reason="abort") == aborted + 1


async def test_async_client(default_server: Server, model: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=default_server.url, auth_token="none") as client:
        async with client.messages.stream(model=model, **QUESTION) as stream:
            assert await stream.get_final_text() == ANSWER
        count = await client.beta.messages.count_tokens(model=model, messages=QUESTION["messages"])
        message = await client.beta.messages.create(model=model, **QUESTION)
        assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == count.input_tokens
