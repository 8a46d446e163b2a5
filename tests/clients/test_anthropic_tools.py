"""Tools and thinking with Anthropic's own Python client against real servers."""

from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import pytest

from tests.end_to_end.server import Server

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tells the weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
DICE: dict[str, Any] = {
    "name": "roll_dice",
    "input_schema": {
        "type": "object",
        "properties": {"sides": {"type": "integer", "minimum": 2, "maximum": 99}},
        "additionalProperties": False,
    },
}
QUESTION: dict[str, Any] = {
    "max_tokens": 120,
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [WEATHER, DICE],
    "extra_body": {"temperature": 0},
}
ANY: dict[str, Any] = QUESTION | {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
NAMED: dict[str, Any] = QUESTION | {"tool_choice": {"type": "tool", "name": "roll_dice"}}
SCHEMAS = {tool["name"]: tool["input_schema"] for tool in (WEATHER, DICE)}
SUM: dict[str, Any] = {"max_tokens": 40, "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
SUM |= {"extra_body": {"temperature": 0}}
THINKING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 4}}


@pytest.fixture(scope="module")
def client(default_server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=default_server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: anthropic.Anthropic) -> str:
    return client.models.list().data[0].id


@pytest.fixture(scope="module")
def thinker(thinking_server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=thinking_server.url, api_key="none", max_retries=0) as client:
        yield client


def streamed(client: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    with client.messages.stream(**fields) as stream:
        return stream.get_final_message()


def said(message: anthropic.types.Message) -> list[dict[str, Any]]:
    """The blocks, without ids, which are random."""
    return [block.to_dict(exclude_unset=True) | {"id": None} for block in message.content]


def test_tools_round_trip(client: anthropic.Anthropic, model: str) -> None:
    whole = client.messages.create(model=model, **ANY)
    called = streamed(client, model=model, **ANY)
    assert said(called) == said(whole)
    assert called.stop_reason == whole.stop_reason == "tool_use"
    [block] = called.content
    assert block.type == "tool_use" and block.id.startswith("toolu_")
    jsonschema.validate(block.input, SCHEMAS[block.name])
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "It is raining in Paris, 9 degrees."}
    turns = [
        *QUESTION["messages"],
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result, {"type": "text", "text": "What does that mean?"}]},
    ]
    fields = {"model": model, **QUESTION, "messages": turns, "tool_choice": {"type": "none"}}
    answer = client.messages.create(**fields)
    assert [block.type for block in answer.content] == ["text"]
    assert said(streamed(client, **fields)) == said(answer)


def test_a_named_tool(client: anthropic.Anthropic, model: str) -> None:
    whole = client.messages.create(model=model, **NAMED)
    [block] = whole.content
    assert block.type == "tool_use" and block.name == "roll_dice"
    jsonschema.validate(block.input, DICE["input_schema"])
    assert whole.stop_reason == "tool_use"
    assert said(streamed(client, model=model, **NAMED)) == said(whole)


def test_a_call_that_was_cut_off(client: anthropic.Anthropic, model: str) -> None:
    for max_tokens in (9, 14):
        fields = {"model": model, **ANY, "max_tokens": max_tokens}
        whole = client.messages.create(**fields)
        assert whole.stop_reason == "max_tokens"
        assert said(streamed(client, **fields)) == said(whole)


def test_counting_counts_the_tools(client: anthropic.Anthropic, model: str) -> None:
    prompt = {"model": model, "messages": QUESTION["messages"], "system": "Be brief."}
    bare = client.messages.count_tokens(**prompt).input_tokens
    count = client.messages.count_tokens(**prompt, tools=QUESTION["tools"]).input_tokens
    assert count > bare + 50
    message = client.messages.create(system="Be brief.", model=model, **QUESTION | {"max_tokens": 1})
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == count


def test_thinking(thinker: anthropic.Anthropic, model: str) -> None:
    whole = thinker.messages.create(model=model, **SUM, **THINKING)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert said(streamed(thinker, model=model, **SUM, **THINKING)) == said(whole)
    thought = whole.content[0]
    assert thought.type == "thinking" and thought.signature and "<" not in thought.thinking
    details = whole.usage.output_tokens_details
    assert details is not None and 1 <= details.thinking_tokens <= 4
    turns = [*SUM["messages"], {"role": "assistant", "content": whole.content}, SUM["messages"][0]]
    again = thinker.messages.create(model=model, **SUM | {"messages": turns, "max_tokens": 1}, **THINKING)
    assert [block.type for block in again.content] == ["thinking"]


def test_thinking_can_be_left_out(thinker: anthropic.Anthropic, model: str) -> None:
    for fields in ({}, {"thinking": {"type": "disabled"}}, {"thinking": THINKING["thinking"] | {"display": "omitted"}}):
        message = thinker.messages.create(model=model, **SUM, **fields)
        assert [block.type for block in message.content] == ["text"]


def test_a_call_behind_thinking(thinker: anthropic.Anthropic, model: str) -> None:
    whole = thinker.messages.create(model=model, **ANY, **THINKING)
    assert [block.type for block in whole.content] == ["thinking", "tool_use"]
    assert whole.stop_reason == "tool_use"
    assert said(streamed(thinker, model=model, **ANY, **THINKING)) == said(whole)
