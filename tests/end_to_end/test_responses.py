"""/v1/responses against a real model with OpenAI's own client: its types, its stream helper, its conversation state."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai.lib.streaming.responses import ResponseStreamEvent
from openai.types.responses import Response, ResponseOutputMessage, ResponseOutputText, ResponseTextDeltaEvent
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from tests.end_to_end.server import Server

QUESTION = "What is the capital of France?"


@pytest.fixture
def client(default_server: Server) -> Iterator[openai.OpenAI]:
    # Strict: a response that does not fit the client's types is an error.
    with openai.OpenAI(
        base_url=default_server.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def name_of(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def ask(client: openai.OpenAI, text: str, **fields: object) -> Response:
    response = client.responses.create(input=text, temperature=0, **fields)  # type: ignore[call-overload]
    assert isinstance(response, Response)
    return response


def stream(client: openai.OpenAI, text: str, **fields: object) -> list[ResponseStreamEvent]:
    with client.responses.stream(model=name_of(client), input=text, temperature=0, **fields) as events:  # type: ignore[call-overload]
        return list(events)


def test_create_and_retrieve_and_delete(client: openai.OpenAI) -> None:
    response = ask(client, QUESTION, max_output_tokens=24, metadata={"a": "b"})
    assert "Paris" in response.output_text
    assert (response.status, response.error, response.metadata) == ("completed", None, {"a": "b"})
    assert (response.temperature, response.store) == (0.0, True)
    [message] = response.output
    assert isinstance(message, ResponseOutputMessage) and message.status == "completed"
    usage = response.usage
    assert usage is not None and usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    items = client.responses.input_items.list(response.id)
    [item] = items.data
    assert item.to_dict()["content"] == [{"type": "input_text", "text": QUESTION}]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve(response.id)
    assert caught.value.code == "response_not_found"


def test_the_stream_helper_sees_the_whole_answer(client: openai.OpenAI) -> None:
    whole = ask(client, QUESTION, max_output_tokens=24)
    events = stream(client, QUESTION, max_output_tokens=24)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if isinstance(event, ResponseTextDeltaEvent)]
    assert len(deltas) > 3
    assert "".join(event.delta for event in deltas) == whole.output_text
    assert getattr(deltas[-1], "snapshot", None) == whole.output_text
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None and whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_incomplete(client: openai.OpenAI) -> None:
    whole = ask(client, "Tell me a long story.", max_output_tokens=6)
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None and whole.incomplete_details.reason == "max_output_tokens"
    last = stream(client, "Tell me a long story.", max_output_tokens=6)[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text


def test_the_second_turn_sees_the_first(client: openai.OpenAI) -> None:
    first = ask(client, "My name is Zoltan. Remember it.", max_output_tokens=12)
    second = ask(client, "What is my name?", max_output_tokens=12, previous_response_id=first.id)
    third = stream(client, "Say it again.", max_output_tokens=12, previous_response_id=second.id)[-1]
    assert third.type in ("response.completed", "response.incomplete")
    texts = ["My name is Zoltan. Remember it.", first.output_text, "What is my name?", second.output_text]
    texts.append("Say it again.")
    roles = ["user", "assistant"] * 3
    for end, answer in ((3, second), (5, third.response)):  # type: ignore[union-attr]
        chat = client.chat.completions.create(
            model=name_of(client),
            messages=[{"role": role, "content": text} for role, text in zip(roles[:end], texts, strict=False)],  # type: ignore[misc]
            temperature=0,
            max_completion_tokens=12,
        )
        assert chat.choices[0].message.content == answer.output_text
        assert chat.usage is not None and answer.usage is not None
        assert chat.usage.prompt_tokens == answer.usage.input_tokens
    listed = list(client.responses.input_items.list(third.response.id, order="asc", limit=2))  # type: ignore[union-attr]
    assert [item.to_dict()["content"][0]["text"] for item in listed] == texts  # type: ignore[index]
    # The same conversation, sent back item by item, gives the same answer.
    history: list[ResponseInputItemParam] = [{"role": "user", "content": texts[0]}]
    history += [item.to_dict() for item in first.output]  # type: ignore[misc]
    history += [{"role": "user", "content": texts[2]}]
    again = client.responses.create(
        model=name_of(client), input=history, temperature=0, max_output_tokens=12, store=False
    )
    assert again.output_text == second.output_text
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(again.id)


def test_log_probabilities(client: openai.OpenAI) -> None:
    response = ask(client, QUESTION, max_output_tokens=6, include=["message.output_text.logprobs"], top_logprobs=3)
    [message] = response.output
    assert isinstance(message, ResponseOutputMessage)
    [part] = message.content
    assert isinstance(part, ResponseOutputText) and part.logprobs is not None and response.usage is not None
    assert len(part.logprobs) == response.usage.output_tokens
    for entry in part.logprobs:
        assert len(entry.top_logprobs) == 3
        # At temperature 0 the sampled token is the best, with the identical number.
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)


def test_input_tokens(client: openai.OpenAI) -> None:
    response = ask(client, QUESTION, max_output_tokens=1)
    count = client.responses.input_tokens.count(model=name_of(client), input=QUESTION)
    assert response.usage is not None and count.input_tokens == response.usage.input_tokens


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        ask(client, QUESTION, previous_response_id="resp_none")
    assert (not_found.value.param, not_found.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(openai.BadRequestError, match="background"):
        ask(client, QUESTION, background=True)
    with pytest.raises(openai.BadRequestError) as too_long:
        ask(client, "word " * 20_000)
    assert (too_long.value.param, too_long.value.code) == ("input", "context_length_exceeded")


def test_hanging_up_in_a_stream(client: openai.OpenAI, default_server: Server) -> None:
    with client.responses.create(input="Tell me a story.", stream=True, extra_body={"ignore_eos": True}) as events:
        created = next(iter(events))
        assert created.type == "response.created"
        next(iter(events))
    default_server.wait_for_metric("engined:num_requests_running", 0)
    status, body = default_server.get(f"/v1/responses/{created.response.id}")
    assert (status, json.loads(body)["error"]["code"]) == (404, "response_not_found")
