"""Tools and reasoning of chat requests: what is refused, what the model is told, and what the engine is asked for."""

import json
from dataclasses import replace
from typing import Any

import pytest

from engined.config.schema import Config, ModelConfig
from engined.protocol.reasoning import ReasoningSpec
from tests.conftest import THINKING_TEMPLATE
from tests.frontend.conftest import RunningFrontend, StartFrontend

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Now", "parameters": PARAMETERS}}
TIME = {"type": "function", "function": {"name": "get_time"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
CALLED: list[dict[str, Any]] = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"}
THINKING = Config(model=ModelConfig(chat_template=str(THINKING_TEMPLATE)))


async def post(frontend: RunningFrontend, **fields: Any) -> tuple[int, Any]:
    return await frontend.post(CHAT, {"messages": MESSAGES, **fields})


async def prompt(frontend: RunningFrontend, **fields: Any) -> str:
    status, body = await post(frontend, return_prompt_text=True, **fields)
    assert status == 200, body
    text: str = body["prompt_text"]
    return text


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def called(**changes: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": [{**CALL, **changes}]}]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"tools": []}),
    *(("tools", {"tools": [tool(name=f"f{index}") for index in range(count)]}) for count in (129, 10_000)),
    ("tools[1].function.name", {"tools": [WEATHER, WEATHER]}),
    *(("tools[0].function.name", {"tools": [tool(name=name)]}) for name in ("", "a b", "é", "a\n")),
    *(("tools[0].function.name", {"tools": [tool(name="x" * length)]}) for length in (65, 1_000_000)),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("tools[0].function.parameters", {"tools": [tool(parameters=5)]}),
    ("tools[0].function.parameters", {"tools": [tool(parameters=json.loads('{"a":' * 65 + "1" + "}" * 65))]}),
    ("tools[0].function.parameter", {"tools": [tool(parameter={})]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": NAMED}),
    ("tool_choice", {"tool_choice": "any", "tools": [WEATHER]}),
    ("tool_choice.type", {"tool_choice": {"type": "custom"}, "tools": [WEATHER]}),
    ("tool_choice.function", {"tool_choice": {"type": "function"}, "tools": [WEATHER]}),
    ("tool_choice.function.name", {"tool_choice": NAMED, "tools": [TIME]}),
    ("tool_choice.allowed_tools", {"tool_choice": {"type": "allowed_tools"}, "tools": [TIME]}),
    (
        "tool_choice.allowed_tools.tools[0].function.name",
        {
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
            "tools": [TIME],
        },
    ),
    ("functions", {"functions": [{"name": "f"}]}),
    ("function_call", {"function_call": {"name": "f"}}),
    (
        "response_format.json_schema.schema",
        {"tools": [WEATHER], "tool_choice": "required", "response_format": JSON_FORMAT},
    ),
    ("structured_outputs.regex", {"tools": [WEATHER], "structured_outputs": {"regex": "a+"}}),
    ("messages[0].role", {"messages": [{"role": "function", "name": "f", "content": "x"}]}),
    ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].tool_call_id", {"messages": [RESULT]}),
    ("messages[2].tool_call_id", {"messages": [*CALLED, {**RESULT, "tool_call_id": "call_2"}]}),
    ("messages[2].content", {"messages": [*CALLED, {**RESULT, "content": None}]}),
    ("messages[0].tool_calls", {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}),
    ("messages[0].reasoning_content", {"messages": [{"role": "user", "content": "x", "reasoning_content": "y"}]}),
    ("messages[0].reasoning", {"messages": [{"role": "assistant", "reasoning": "x", "reasoning_content": "y"}]}),
    ("messages[0].function_call", {"messages": [{"role": "assistant", "function_call": {}}]}),
    ("messages[0].tool_calls[0].id", {"messages": called(id="")}),
    ("messages[0].tool_calls[0].type", {"messages": called(type="custom")}),
    ("messages[0].tool_calls[0].function", {"messages": called(function=None)}),
    *(
        (
            "messages[0].tool_calls[0].function.arguments",
            {"messages": called(function={"name": "f", "arguments": text})},
        )
        for text in ("{", "[]", "1", '{"a": NaN}')
    ),
    ("thinking_token_budget", {"thinking_token_budget": 5}),
    ("thinking_token_budget", {"thinking_token_budget": -2}),
    ("reasoning_effort", {"reasoning_effort": "highest"}),
]


async def test_what_is_refused(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend()
    for param, fields in REFUSED:
        status, body = await post(frontend, **fields)
        assert status == 400, (param, fields)
        assert body["error"]["param"] == param, (fields, body)
        assert param.split(".")[-1] in body["error"]["message"]
    assert frontend.engine.added == []


async def test_what_the_model_is_told(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(max_model_len=2048)
    plain = await prompt(frontend)
    for shown in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}, {"tool_choice": NAMED}):
        text = await prompt(frontend, tools=[WEATHER, TIME], **shown)
        assert json.dumps(WEATHER["function"]) in text and "get_time" in text
    # A tool that the model must not call is not shown, and no tools are as none.
    assert await prompt(frontend, tools=[WEATHER], tool_choice="none") == plain
    assert await prompt(frontend, tool_choice="auto") == plain
    text = await prompt(frontend, messages=[*CALLED, RESULT])
    assert '{"name": "get_weather", "arguments": {"city": "Rome"}}' in text
    assert "The function get_weather returned:\nSunny" in text and "You may call" not in text


async def test_what_the_engine_is_asked_for(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(max_model_len=2048, config=THINKING)

    async def grammar(**fields: Any) -> dict[str, Any] | None:
        status, body = await post(frontend, tools=[WEATHER, TIME], **fields)
        assert status == 200, body
        spec = frontend.engine.added[-1].grammar
        assert spec is None or spec.kind == "tool_calls"
        return None if spec is None else json.loads(spec.value)

    assert await grammar() is None
    required = await grammar(tool_choice="required")
    assert required is not None
    assert (required["mode"], required["max_calls"]) == ("required", 16)
    assert [entry["name"] for entry in required["tools"]] == ["get_weather", "get_time"]
    one = await grammar(tool_choice="required", parallel_tool_calls=False)
    assert one is not None and one["max_calls"] == 1
    named = await grammar(tool_choice=NAMED)
    assert named is not None
    assert (named["mode"], named["max_calls"]) == ("required", 1)
    assert named["tools"] == [{"name": "get_weather", "parameters": PARAMETERS}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    some = await grammar(tool_choice=allowed)
    assert some is not None and [entry["name"] for entry in some["tools"]] == ["get_weather"]
    either = await grammar(response_format=JSON_FORMAT)
    assert either is not None
    assert (either["mode"], either["content_schema"]) == ("auto", SCHEMA)
    status, body = await post(frontend, tools=[TIME, tool(parameters=PARAMETERS, strict=True)])
    spec = frontend.engine.added[-1].grammar
    assert status == 200 and spec is not None, body
    assert json.loads(spec.value)["mode"] == "auto"


async def test_a_schema_that_cannot_be_kept_is_named(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(max_model_len=2048)
    faulty = tool(parameters={"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}})
    for fields in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        status, body = await post(frontend, tools=[WEATHER, faulty], **fields)
        assert (status, body["error"]["param"]) == (400, "tools[1].function.parameters"), body
    # Nothing is enforced here, so that nothing need be compiled.
    assert (await post(frontend, tools=[WEATHER, faulty]))[0] == 200


async def test_reasoning_before_what_is_constrained(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(max_model_len=2048, config=THINKING)

    async def reasoning(**fields: Any) -> ReasoningSpec | None:
        status, body = await post(frontend, **fields)
        assert status == 200, body
        return frontend.engine.added[-1].reasoning

    opened = ReasoningSpec(begin="<think>", end="</think>", separator="\n\n", start="open")
    assert await reasoning() is None
    assert await reasoning(thinking_token_budget=-1) is None
    assert await reasoning(response_format=JSON_FORMAT) == opened
    assert await reasoning(tools=[WEATHER], tool_choice="required") == opened
    assert await reasoning(thinking_token_budget=0) == replace(opened, max_tokens=0)
    assert await reasoning(reasoning_effort="none", response_format=JSON_FORMAT) is None
    assert await reasoning(add_generation_prompt=False, thinking_token_budget=3) == replace(
        opened, start="optional", max_tokens=3
    )
    for text, start in (("<think>so", "open"), ("</think>so", None), ("so", "optional")):
        spec = await reasoning(
            messages=[*MESSAGES, {"role": "assistant", "content": text}],
            continue_final_message=True,
            thinking_token_budget=3,
        )
        assert (None if spec is None else spec.start) == start, text
    # What a user writes is no reasoning of the model.
    evil = [{"role": "user", "content": "<think>"}]
    assert (await reasoning(messages=evil, add_generation_prompt=False, thinking_token_budget=3)) == replace(
        opened, start="optional", max_tokens=3
    )


async def test_reasoning_effort_and_earlier_reasoning(start_frontend: StartFrontend) -> None:
    frontend = await start_frontend(max_model_len=2048, config=THINKING)
    assert (await prompt(frontend)).endswith("<think>\n")
    assert (await prompt(frontend, reasoning_effort="none")).endswith("<think>\n\n</think>\n\n")
    assert (await prompt(frontend, reasoning_effort="high")) == (await prompt(frontend)), "the template knows none"
    for name in ("reasoning", "reasoning_content"):
        text = await prompt(frontend, messages=[{**CALLED[1], name: "hmm"}, RESULT])
        assert '<think>\nhmm\n</think>\n\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}' in text


@pytest.mark.parametrize("parsers", ["auto", "none"])
async def test_formats_are_chosen_once(start_frontend: StartFrontend, parsers: str) -> None:
    model = replace(THINKING.model, tool_call_parser=parsers, reasoning_parser=parsers)
    frontend = await start_frontend(max_model_len=2048, config=replace(THINKING, model=model))
    _, models = await frontend.get("/v1/models")
    capabilities = models["data"][0]["capabilities"]
    assert capabilities["tools"] is capabilities["reasoning"] is (parsers == "auto")
    status, body = await post(frontend, tools=[WEATHER])
    assert (status, body.get("error", {}).get("param")) == ((200, None) if parsers == "auto" else (400, "tools"))
    status, _ = await post(frontend, thinking_token_budget=1)
    assert status == (200 if parsers == "auto" else 400)
