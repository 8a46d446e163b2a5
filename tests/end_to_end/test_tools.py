"""Tools of a real model at a high temperature: what ends by itself are whole calls whose arguments validate."""

import json
from typing import Any

import jsonschema
import pytest

from tests.end_to_end.server import Server
from tests.end_to_end.test_constrained import PERSON, TREE, ask

SCHEMAS = {"add_person": PERSON, "plant_tree": TREE, "stop": {"type": "object", "additionalProperties": False}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "Do it.", "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
HOT: dict[str, Any] = {"tools": TOOLS, "temperature": 1.5, "max_tokens": 80, "n": 12, "seed": 5}


def check_calls(message: dict[str, Any]) -> list[str]:
    """The names of the calls of a message, all of which must validate."""
    names = []
    for call in message["tool_calls"]:
        names.append(call["function"]["name"])
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[names[-1]])
    assert len({call["id"] for call in message["tool_calls"]}) == len(names)
    return names


@pytest.mark.parametrize("thinks", [False, True])
def test_required_calls(default_server: Server, thinking_server: Server, thinks: bool) -> None:
    server, budget = (thinking_server, 12) if thinks else (default_server, None)
    single = {"tool_choice": "required", "parallel_tool_calls": False}  # hot models find no end of many calls
    choices = ask(server, "Add somebody.", thinking_token_budget=budget, **single, **HOT)
    ended = [choice for choice in choices if choice["finish_reason"] == "tool_calls"]
    assert len(ended) > 1 and {choice["finish_reason"] for choice in choices} <= {"tool_calls", "length"}
    called = [name for choice in ended for name in check_calls(choice["message"])]
    assert len(set(called)) > 1, "a hot model calls this and that"
    for choice in choices:
        assert not choice["message"]["content"], choice
        assert bool(choice["message"].get("reasoning_content")) is thinks


def test_a_named_tool(default_server: Server) -> None:
    named = {"type": "function", "function": {"name": "stop"}}
    for choice in ask(default_server, "Go on.", tool_choice=named, **HOT):
        assert choice["finish_reason"] == "stop"
        assert check_calls(choice["message"]) == ["stop"]


def test_calls_or_content_of_a_schema(default_server: Server) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    closed = {**schema, "additionalProperties": False}
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": closed}}
    for choice in ask(default_server, "Do as you like.", response_format=response_format, **HOT):
        message, reason = choice["message"], choice["finish_reason"]
        if reason == "tool_calls":
            check_calls(message)
        elif reason == "stop":
            jsonschema.validate(json.loads(message["content"]), closed)
        else:
            assert reason == "length"
