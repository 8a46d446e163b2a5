"""Tools and reasoning in /v1/responses, with OpenAI's own client and its types."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import (
    ParsedResponse,
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)
from pydantic import BaseModel

from tests.end_to_end.server import Server

QUESTION = "Which city is the capital of France?"


class Place(BaseModel):
    """Choose a city."""

    city: Literal["Paris", "Rome", "São Paulo"]
    rank: Literal[1, 2, 3]


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome", "São Paulo"]}, "rank": {"enum": [1, 2, 3]}},
    "required": ["city", "rank"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "set_city", "description": "Choose a city.", "parameters": PARAMETERS}
CASES: dict[str, dict[str, Any]] = {
    "named": {"tool_choice": {"type": "function", "name": "set_city"}, "temperature": 1, "extra_body": {"seed": 3}},
    "allowed": {
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "set_city"}],
        },
        "tools": [{**TOOL, "name": "clear"}, TOOL],
        "parallel_tool_calls": False,
    },
    "strict": {"tools": [{**TOOL, "strict": True}], "parallel_tool_calls": False},
    "none": {"tool_choice": "none", "max_output_tokens": 16},
    "cut off": {"tool_choice": "required", "max_output_tokens": 14},
}
THINKING: dict[str, dict[str, Any]] = {
    "thought and called": {"tool_choice": "required", "parallel_tool_calls": False},
    "thought and wrote JSON": {
        "tools": [],
        "text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS}},
    },
    "cut off in thought": {"max_output_tokens": 6},
    "did not think": {"reasoning": {"effort": "none"}, "tool_choice": "required"},
}


@contextmanager
def connect(server: Server) -> Iterator[openai.OpenAI]:
    """Strict: what does not fit the client's types is an error, events included."""
    with openai.OpenAI(
        base_url=server.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture
def client(default_server: Server) -> Iterator[openai.OpenAI]:
    with connect(default_server) as client:
        yield client


@pytest.fixture
def thinking_client(thinking_server: Server) -> Iterator[openai.OpenAI]:
    with connect(thinking_server) as client:
        yield client


def fields_of(client: openai.OpenAI, **fields: Any) -> dict[str, Any]:
    base = {"model": client.models.list().data[0].id, "input": QUESTION, "temperature": 0, "max_output_tokens": 60}
    return base | {"tools": [TOOL]} | fields


def ask(client: openai.OpenAI, **fields: Any) -> Response:
    response = client.responses.create(**fields_of(client, **fields))
    assert isinstance(response, Response)
    return response


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


def items_of(response: Response) -> list[dict[str, Any]]:
    return [item.to_dict() for item in response.output]


def check_stream(client: openai.OpenAI, whole: Response, **fields: Any) -> None:
    """A stream of the same seed ends with equal items, its events tell them, and the store has them."""
    events = list(client.responses.create(**fields_of(client, **fields), stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    items = items_of(last.response)
    assert (last.response.status, without_ids(items)) == (whole.status, without_ids(items_of(whole)))
    assert last.response.usage is not None and whole.usage is not None
    assert last.response.usage.output_tokens_details == whole.usage.output_tokens_details
    assert [event.item.to_dict() for event in events if event.type == "response.output_item.done"] == items
    said = {item["id"]: "" for item in items}
    for event in events:
        if event.type.endswith(".delta"):
            said[event.item_id] += event.delta
    assert [*said.values()] == [
        item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in items
    ]
    assert items_of(client.responses.retrieve(last.response.id)) == items


def check_call(item: object) -> ResponseFunctionToolCall:
    assert isinstance(item, ResponseFunctionToolCall)
    assert (item.name, item.status) == ("set_city", "completed")
    Place.model_validate_json(item.arguments)
    return item


@pytest.mark.parametrize("case", CASES)
def test_calls_streamed_and_whole(client: openai.OpenAI, case: str) -> None:
    whole = ask(client, **CASES[case])
    check_stream(client, whole, **CASES[case])
    if case in ("named", "allowed"):
        assert whole.status == "completed"
        [item] = whole.output
        call = check_call(item)
        assert call.call_id.startswith("call_") and call.id is not None and call.id.startswith("fc_")
    elif case == "cut off":
        assert whole.incomplete_details is not None and whole.incomplete_details.reason == "max_output_tokens"
        [call] = whole.output  # type: ignore[assignment]
        assert isinstance(call, ResponseFunctionToolCall) and call.status == "incomplete"
        assert call.arguments.startswith("{") and not call.arguments.endswith("}")
    elif case == "none":
        [message] = whole.output
        assert isinstance(message, ResponseOutputMessage) and whole.output_text


@pytest.mark.parametrize("case", THINKING)
def test_reasoning_streamed_and_whole(thinking_client: openai.OpenAI, case: str) -> None:
    fields = THINKING[case] | {"extra_body": {"thinking_token_budget": 12}}
    whole = ask(thinking_client, **fields)
    check_stream(thinking_client, whole, **fields)
    kinds = [item.type for item in whole.output]
    assert whole.usage is not None
    num_reasoning_tokens = whole.usage.output_tokens_details.reasoning_tokens
    if case == "did not think":
        assert (set(kinds), num_reasoning_tokens) == ({"function_call"}, 0)
        return
    assert 0 < num_reasoning_tokens <= 12
    reasoning = whole.output[0]
    assert isinstance(reasoning, ResponseReasoningItem) and reasoning.content and reasoning.content[0].text
    if case == "cut off in thought":
        assert (kinds, reasoning.status, whole.status) == (["reasoning"], "incomplete", "incomplete")
        return
    assert reasoning.status == "completed"
    if case == "thought and called":
        assert kinds[1:] == ["function_call"]
        check_call(whole.output[1])
    elif case == "thought and wrote JSON":
        assert kinds == ["reasoning", "message"]
        Place.model_validate_json(whole.output_text)


def test_a_round_trip(thinking_client: openai.OpenAI) -> None:
    """By previous_response_id and by sending all items back, in the same words as chat completions."""
    client = thinking_client
    fields = {"reasoning": {"effort": "none"}, "max_output_tokens": 40}
    first = ask(client, tool_choice="required", parallel_tool_calls=False, **fields)
    call = check_call(first.output[0])
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "The city is now Paris."}
    second = ask(client, input=[result], previous_response_id=first.id, **fields)
    explicit = [{"role": "user", "content": QUESTION}, *(item.to_dict() for item in first.output), result]
    again = ask(client, input=explicit, store=False, **fields)
    assert without_ids(items_of(again)) == without_ids(items_of(second))
    function = {"name": call.name, "arguments": call.arguments}
    messages: list[Any] = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "tool_calls": [{"id": call.call_id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call.call_id, "content": result["output"]},
    ]
    nested: Any = {"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}
    chat = client.chat.completions.create(
        model=again.model,
        messages=messages,
        tools=[nested],
        reasoning_effort="none",
        temperature=0,
        max_completion_tokens=40,
    )
    assert chat.usage is not None and second.usage is not None
    assert chat.usage.prompt_tokens == second.usage.input_tokens
    assert (chat.choices[0].message.content or "") == second.output_text
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]


def test_parse(client: openai.OpenAI) -> None:
    """The client's helpers for pydantic: of the text, and of arguments."""
    model = client.models.list().data[0].id
    parsed = client.responses.parse(model=model, input=QUESTION, text_format=Place, temperature=0)
    assert isinstance(parsed.output_parsed, Place)
    tool: Any = openai.pydantic_function_tool(Place)
    called: ParsedResponse[None] = client.responses.parse(
        model=model,
        input=QUESTION,
        tools=[tool],
        tool_choice="required",
        temperature=0,
    )
    [call] = called.output
    assert call.type == "function_call" and isinstance(call.parsed_arguments, Place)
    with client.responses.stream(
        model=model,
        input=QUESTION,
        tools=[tool],
        tool_choice="required",
        temperature=0,
    ) as events:
        snapshots = [event.snapshot for event in events if event.type == "response.function_call_arguments.delta"]
        final = events.get_final_response()
    [streamed] = final.output
    assert streamed.type == "function_call" and streamed.parsed_arguments == call.parsed_arguments
    assert len(snapshots) > 3 and json.loads(snapshots[-1]) == call.parsed_arguments.model_dump()


def test_refusals(client: openai.OpenAI) -> None:
    for fields, param in (
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "https://example.org"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice.name"),
        ({"tools": [{**TOOL, "parameters": {"type": "wrong"}}], "tool_choice": "required"}, "tools[0].parameters"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, **fields)
        assert caught.value.param == param and param in str(caught.value)
