"""OpenAI's own Python client, its helpers for structured output and tools, against a real server."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionMessage
from pydantic import BaseModel, Field

from tests.end_to_end.server import Server


class City(BaseModel):
    """A city and where it stands in a list."""

    name: Literal["Paris", "Rome", "Tokyo"]
    rank: int = Field(ge=1, le=9)


class GetWeather(BaseModel):
    """The weather of the next days."""

    city: Literal["Paris", "Rome", "Tokyo"]
    days: int = Field(ge=1, le=5)


class SetAlarm(BaseModel):
    """Set an alarm."""

    hour: int = Field(ge=0, le=23)
    label: str = Field(max_length=12)


TOOLS = [openai.pydantic_function_tool(GetWeather), openai.pydantic_function_tool(SetAlarm)]
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "What will the weather be in Rome tomorrow?"}]


@pytest.fixture(scope="module")
def client(default_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{default_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def request_body(client: openai.OpenAI) -> dict[str, Any]:
    [card] = client.models.list().data
    return {"model": card.id, "messages": MESSAGES, "temperature": 0, "max_tokens": 100}


def answer(client: openai.OpenAI, body: dict[str, Any], *, is_streamed: bool) -> Any:
    """A `ChatCompletion`. The client adds up the chunks of a stream itself."""
    if not is_streamed:
        return client.chat.completions.create(**body)
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(**body, stream=True):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot


def comparable(message: ChatCompletionMessage) -> dict[str, Any]:
    """A message without what differs in every answer."""
    calls = [(call.type, call.function.name, call.function.arguments) for call in function_calls(message)]
    return {"role": message.role, "content": message.content, "calls": calls}


def function_calls(message: ChatCompletionMessage) -> list[Any]:
    return list(message.tool_calls or [])


def test_parsed_answers(client: openai.OpenAI, request_body: dict[str, Any]) -> None:
    whole = client.chat.completions.parse(**request_body, response_format=City)
    parsed = whole.choices[0].message.parsed
    assert isinstance(parsed, City) and whole.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(**request_body, response_format=City) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed
    [done] = [event for event in events if event.type == "content.done"]
    assert done.parsed == parsed


@pytest.mark.parametrize("is_streamed", [False, True])
def test_parsed_tool_calls(client: openai.OpenAI, request_body: dict[str, Any], is_streamed: bool) -> None:
    body = {**request_body, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    if is_streamed:
        with client.chat.completions.stream(**body) as stream:
            events = list(stream)
            [choice] = stream.get_final_completion().choices
        [done] = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        deltas = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
        assert "".join(deltas) == done.arguments and len(deltas) > 2, "they come as they grow"
    else:
        [choice] = client.chat.completions.parse(**body).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls or []
    model = {"GetWeather": GetWeather, "SetAlarm": SetAlarm}[call.function.name]
    assert isinstance(call.function.parsed_arguments, model)
    assert call.id.startswith("call_")


@pytest.mark.parametrize(
    "choice",
    [
        {"tool_choice": "required"},
        {"tool_choice": "auto", "max_tokens": 40},
        {"tool_choice": "none", "max_tokens": 20},
        {"tool_choice": {"type": "function", "function": {"name": "SetAlarm"}}},
        {"tool_choice": "required", "parallel_tool_calls": False},
    ],
    ids=["required", "auto", "none", "named", "single"],
)
def test_streams_are_whole_answers(client: openai.OpenAI, request_body: dict[str, Any], choice: dict[str, Any]) -> None:
    body = {**request_body, "tools": TOOLS, **choice}
    [whole], [streamed] = (answer(client, body, is_streamed=is_streamed).choices for is_streamed in (False, True))
    assert comparable(streamed.message) == comparable(whole.message)
    assert streamed.finish_reason == whole.finish_reason
    calls = function_calls(whole.message)
    if choice["tool_choice"] == "none":
        assert not calls
    elif choice["tool_choice"] == "required":
        assert calls and whole.finish_reason == "tool_calls"
        assert len(calls) == 1 or choice.get("parallel_tool_calls") is not False
    elif isinstance(choice["tool_choice"], dict):
        assert [call.function.name for call in calls] == ["SetAlarm"] and whole.finish_reason == "stop"
    for call in calls:
        {"GetWeather": GetWeather, "SetAlarm": SetAlarm}[call.function.name].model_validate_json(
            call.function.arguments
        )


@pytest.mark.parametrize("is_streamed", [False, True])
def test_round_trip(client: openai.OpenAI, request_body: dict[str, Any], is_streamed: bool) -> None:
    body = {**request_body, "tools": TOOLS, "tool_choice": "required"}
    first = answer(client, body, is_streamed=is_streamed).choices[0].message
    calls = function_calls(first)
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear", "degrees": 24}'} for call in calls
    ]
    # As programs do it: the message object goes back as it came.
    messages = [*MESSAGES, first, *results]
    second = answer(client, {**body, "messages": messages, "tool_choice": "auto"}, is_streamed=is_streamed).choices[0]
    assert second.message.content or second.message.tool_calls
    rendered = client.post(
        "/chat/completions/render", body={**body, "messages": json_messages(messages)}, cast_to=object
    )
    assert isinstance(rendered, dict)
    for text in (calls[0].function.name, '"degrees": 24', "GetWeather", "The weather of the next days."):
        assert text in rendered["prompt"]


def json_messages(messages: list[Any]) -> list[dict[str, Any]]:
    return [
        message.model_dump(mode="json", exclude_unset=True) if isinstance(message, BaseModel) else message
        for message in messages
    ]


def test_calls_that_max_tokens_cuts_off(client: openai.OpenAI, request_body: dict[str, Any]) -> None:
    tool_choice = {"type": "function", "function": {"name": "GetWeather"}}
    body = {**request_body, "tools": TOOLS, "tool_choice": tool_choice}
    full = client.chat.completions.create(**body)
    assert full.usage is not None
    length = full.usage.completion_tokens - 3
    [whole] = client.chat.completions.create(**body | {"max_tokens": length}).choices
    chunks = list(client.chat.completions.create(**body | {"max_tokens": length}, stream=True))
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    streamed = "".join(call.function.arguments or "" for call in pieces if call.function)
    [call] = function_calls(whole.message)
    [complete] = function_calls(full.choices[0].message)
    assert whole.finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert streamed == call.function.arguments != complete.function.arguments
    assert complete.function.arguments.startswith(call.function.arguments)
    with pytest.raises(json.JSONDecodeError):
        json.loads(call.function.arguments)


def test_tokenize_counts_tools(client: openai.OpenAI, request_body: dict[str, Any]) -> None:
    body = {"model": request_body["model"], "messages": MESSAGES, "tools": TOOLS}
    counted = client.post("/tokenize", body=body, cast_to=object)
    assert isinstance(counted, dict)
    completion = client.chat.completions.create(**request_body | {"tools": TOOLS, "max_tokens": 1})
    assert completion.usage is not None and counted["count"] == completion.usage.prompt_tokens
