"""Reasoning in chat completions: told apart from the answer, bounded, and never under a constraint.

The default model has never learned to reason: a chat template that begins a block of reasoning makes it ramble, and
the budget ends that.
"""

import json
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion

from tests.end_to_end.server import Server

CHAT = "/v1/chat/completions"
QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story about Paris."}],
    "temperature": 0,
    "max_tokens": 40,
}
BUDGET = 8
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "rank": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "rank"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "set_city", "description": "Choose a city.", "parameters": CITY}}]
CASES: dict[str, dict[str, Any]] = {
    "budget": {"thinking_token_budget": BUDGET},
    "no budget": {"max_tokens": 16},
    "no room": {"thinking_token_budget": 0},
    "switched off": {"chat_template_kwargs": {"enable_thinking": False}},
    "schema": {
        "thinking_token_budget": BUDGET,
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
    },
    "named": {
        "max_tokens": 60,
        "thinking_token_budget": BUDGET,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "set_city"}},
    },
    "required": {
        "max_tokens": 60,
        "thinking_token_budget": BUDGET,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    "auto": {"thinking_token_budget": BUDGET, "tools": TOOLS},
    "left out": {"thinking_token_budget": BUDGET, "include_reasoning": False},
}


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    """The whole answer."""
    status, answer = server.post(CHAT, {**QUESTION, **fields})
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


def stream(server: Server, **fields: Any) -> tuple[ChatCompletion, str]:
    """What OpenAI's client makes of the stream, and the reasoning, which it leaves to its caller."""
    body = {**QUESTION, **fields}
    names = ("messages", "temperature", "max_tokens", "tools", "tool_choice", "response_format", "parallel_tool_calls")
    known = {name: body.pop(name) for name in names if name in body}
    reasoning = ""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        state = ChatCompletionStreamState()
        known |= {"stream": True, "stream_options": {"include_usage": True}}
        for chunk in client.chat.completions.create(model=client.models.list().data[0].id, **known, extra_body=body):
            for choice in chunk.choices:
                reasoning += (choice.delta.model_extra or {}).get("reasoning_content", "")
            state.handle_chunk(chunk)
    return state.current_completion_snapshot, reasoning


@pytest.mark.parametrize("case", CASES)
def test_streams_are_whole_answers(thinking_server: Server, case: str) -> None:
    whole = ask(thinking_server, **CASES[case])
    streamed, reasoning = stream(thinking_server, **CASES[case])
    [expected], [choice] = whole["choices"], streamed.choices
    message = expected["message"]
    assert choice.finish_reason == expected["finish_reason"]
    assert choice.message.content == message["content"]
    assert reasoning == message.get("reasoning_content", "")
    calls = [call.function.model_dump(include={"name", "arguments"}) for call in choice.message.tool_calls or []]
    assert calls == [call["function"] for call in message.get("tool_calls", [])]
    assert streamed.usage is not None
    details = streamed.usage.completion_tokens_details
    assert details is not None
    assert {"reasoning_tokens": details.reasoning_tokens} == whole["usage"]["completion_tokens_details"]
    assert streamed.usage.completion_tokens == whole["usage"]["completion_tokens"]
    for text in (message["content"] or "", reasoning, *(call["arguments"] for call in calls)):
        assert "<think>" not in text and "</think>" not in text and "<tool_call>" not in text


def test_the_budget_ends_the_reasoning(thinking_server: Server) -> None:
    answer = ask(thinking_server, **CASES["budget"])
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"]
    assert 1 <= answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= BUDGET + 2
    unbounded = ask(thinking_server, **CASES["no budget"])
    [choice] = unbounded["choices"]
    # The reasoning is the same as far as it goes, and never ends.
    assert choice["message"]["reasoning_content"].startswith(message["reasoning_content"].strip())
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")


@pytest.mark.parametrize("case", ["no room", "switched off"])
def test_without_reasoning_all_is_content(thinking_server: Server, case: str) -> None:
    answer = ask(thinking_server, **CASES[case])
    message = answer["choices"][0]["message"]
    assert message["content"] and "reasoning_content" not in message
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_a_schema_holds_for_the_answer_only(thinking_server: Server) -> None:
    [choice] = ask(thinking_server, **CASES["schema"])["choices"]
    value = json.loads(choice["message"]["content"])
    assert value["city"] in ("Paris", "Rome") and 1 <= value["rank"] <= 9
    assert choice["message"]["reasoning_content"] and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(("case", "finish_reason"), [("required", "tool_calls"), ("named", "stop")])
def test_tools_are_called_after_reasoning(thinking_server: Server, case: str, finish_reason: str) -> None:
    [choice] = ask(thinking_server, **CASES[case])["choices"]
    message = choice["message"]
    assert message["reasoning_content"] and message["content"] is None
    assert choice["finish_reason"] == finish_reason
    for call in message["tool_calls"]:
        assert call["function"]["name"] == "set_city"
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")


def test_reasoning_that_is_left_out_leaks_nowhere(thinking_server: Server) -> None:
    fields = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    shown = ask(thinking_server, **CASES["budget"], **fields)
    hidden = ask(thinking_server, **CASES["left out"], **fields)
    [choice], [expected] = hidden["choices"], shown["choices"]
    assert choice["message"]["content"] == expected["message"]["content"]
    assert "reasoning_content" not in choice["message"]
    assert choice["logprobs"] is None and "token_ids" not in choice
    assert expected["logprobs"]["content"] and expected["token_ids"]
    assert hidden["usage"] | {"prompt_tokens_details": None} == shown["usage"] | {"prompt_tokens_details": None}
    body = {
        **QUESTION,
        **CASES["left out"],
        **fields,
    }
    data = thinking_server.stream(CHAT, body)
    assert expected["message"]["reasoning_content"].split()[0] not in "".join(
        json.dumps(event["choices"]) for event in data
    )


def test_earlier_reasoning_goes_to_the_template(thinking_server: Server) -> None:
    first = ask(thinking_server, **CASES["budget"])["choices"][0]["message"]
    messages = [*QUESTION["messages"], first, {"role": "user", "content": "And of Italy?"}]
    status, rendered = thinking_server.post(f"{CHAT}/render", {"messages": messages})
    assert status == 200, rendered
    assert f"<think>\n{first['reasoning_content']}\n</think>" in rendered["prompt"]
    assert ask(thinking_server, messages=messages, **CASES["budget"])["choices"][0]["message"]["content"]
