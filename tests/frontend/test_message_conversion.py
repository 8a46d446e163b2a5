"""Bodies of /v1/messages as chat requests: messages, tools, thinking, and refusals that name Anthropic's fields."""

import json
from typing import Any

import pytest
from msgspec import Raw

from engined.errors import RequestError
from engined.frontend.api.chat import ChatCompletionRequest, ChatMessage
from engined.frontend.api.message_blocks import MessageBlock
from engined.frontend.api.messages import CountTokensRequest, MessagesRequest
from engined.frontend.api.parser import BodyParser, check_refused, refused_fields
from engined.frontend.api.tools import ToolChoiceObject
from engined.frontend.serving.messages.conversation import to_chat_messages
from engined.frontend.serving.messages.convert import rename_fields, to_chat_prompt, to_chat_request
from engined.frontend.serving.messages.reasoning import ReasoningAbilities

QUESTION = {"role": "user", "content": "What is the capital of France?"}
BODY: dict[str, Any] = {"max_tokens": 64, "messages": [QUESTION]}
TOOL = {"name": "get_weather", "description": "Look.", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain."}
THINKS = ReasoningAbilities(has_format=True, template_variables=frozenset({"enable_thinking", "reasoning_effort"}))
NO_THOUGHTS = ReasoningAbilities(has_format=False, template_variables=frozenset())


def parse(**fields: Any) -> MessagesRequest:
    return BodyParser(MessagesRequest).parse(json.dumps(BODY | fields).encode())


def convert(abilities: ReasoningAbilities = THINKS, **fields: Any) -> ChatCompletionRequest:
    return to_chat_request(parse(**fields), abilities)


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def answered(*blocks: dict[str, Any], call: dict[str, Any] = CALL) -> list[dict[str, Any]]:
    """A question, an answer that calls, and what the user sends then."""
    return [QUESTION, {"role": "assistant", "content": [call]}, {"role": "user", "content": list(blocks)}]


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {}


def texts(message: ChatMessage) -> list[str | None]:
    assert isinstance(message.content, list)
    return [part.text for part in message.content]


def test_turns_of_one_role_are_one_message() -> None:
    request = parse(
        system="Be brief.",
        messages=[
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
        ],
    )
    system, user, assistant = to_chat_messages(request)
    assert (system.role, system.content) == ("system", "Be brief.")
    assert user.role == "user" and texts(user) == ["a", "b", "c"]
    assert (assistant.role, assistant.content) == ("assistant", "d")
    assert to_chat_request(request, THINKS).continue_final_message
    assert not convert().continue_final_message


def test_calls_and_results() -> None:
    other = {"type": "tool_use", "id": "toolu_2", "name": "roll", "input": {}, "caller": {"type": "direct"}}
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Let me see."},
        CALL,
        other,
    ]
    failed = {
        "type": "tool_result",
        "tool_use_id": "toolu_2",
        "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "dice"}],
        "is_error": True,
    }
    empty = {"type": "tool_result", "tool_use_id": "toolu_1"}
    text = {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}}
    messages = [
        QUESTION,
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [RESULT, failed, empty, text]},
    ]
    _, answer, *results, last = to_chat_messages(parse(messages=messages))
    assert (answer.role, answer.content, answer.reasoning_content) == ("assistant", "Let me see.", "Hm.")
    assert answer.tool_calls is not None
    functions = [(call.id, call.function) for call in answer.tool_calls]
    assert [(id, function.name, function.arguments) for id, function in functions if function] == [
        ("toolu_1", "get_weather", '{"city":"Paris"}'),
        ("toolu_2", "roll", "{}"),
    ]
    assert [(result.role, result.tool_call_id, result.content) for result in results] == [
        ("tool", "toolu_1", "Rain."),
        ("tool", "toolu_2", "Error: no\ndice"),
        ("tool", "toolu_1", ""),
    ]
    assert (last.role, last.content) == ("user", "And now?")


def test_tools() -> None:
    examples = {"input_examples": [{"city": "Paris"}], "strict": True, "type": "custom", "defer_loading": False}
    harmless = {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "allowed_callers": ["direct"]}
    chat = convert(tools=[TOOL, TOOL | {"name": "other"} | examples | harmless])
    assert chat.tools is not None
    plain, other = (tool.function for tool in chat.tools)
    assert plain is not None and other is not None
    assert (plain.name, plain.description, plain.parameters) == ("get_weather", "Look.", {"type": "object"})
    assert (plain.strict, other.strict) == (None, True)
    assert other.description == 'Look.\n\nExamples of its input:\n{"city":"Paris"}'
    assert convert(tools=[]).tools is None


@pytest.mark.parametrize(
    ("choice", "expected"), [("auto", "auto"), ("any", "required"), ("none", "none"), ("tool", "get_weather")]
)
def test_tool_choice(choice: str, expected: str) -> None:
    name = {"name": "get_weather"} if choice == "tool" else {}
    alone = {} if choice == "none" else {"disable_parallel_tool_use": True}
    chat = convert(tools=[TOOL], tool_choice={"type": choice, **name, **alone})
    chosen = chat.tool_choice
    if isinstance(chosen, ToolChoiceObject):
        assert chosen.function is not None
        chosen = chosen.function.name  # type: ignore[assignment]
    assert chosen == expected
    assert chat.parallel_tool_calls is (None if choice == "none" else False)
    assert convert(tools=[], tool_choice={"type": "none"}).tool_choice is None


@pytest.mark.parametrize("fields", [{}, {"thinking": {"type": "disabled"}}])
def test_no_thinking(fields: dict[str, Any]) -> None:
    always = ReasoningAbilities(has_format=True, template_variables=frozenset({"reasoning_effort"}))
    for abilities, switches, budget in (
        (THINKS, {"enable_thinking": False}, None),
        (always, {}, 0),
        (NO_THOUGHTS, {}, None),
    ):
        chat = convert(abilities, **fields)
        assert (chat.include_reasoning, chat.reasoning_effort) == (False, None)
        assert (chat.chat_template_kwargs, chat.thinking_token_budget) == (switches, budget)


def test_thinking() -> None:
    chat = convert(thinking={"type": "enabled", "budget_tokens": 1}, output_config={"effort": "max"})
    assert (chat.include_reasoning, chat.reasoning_effort, chat.thinking_token_budget) == (True, "max", 1)
    assert chat.chat_template_kwargs == {"enable_thinking": True}
    assert convert(thinking={"type": "adaptive", "display": "omitted"}).include_reasoning is False
    chat = convert(NO_THOUGHTS, thinking={"type": "adaptive"}, output_config={"effort": "low"})
    assert (chat.reasoning_effort, chat.chat_template_kwargs) == (None, {})


def test_form_of_the_answer() -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    effort = {"output_config": {"effort": "low"}}
    for fields in (
        {"output_config": {"format": wanted}},
        {"output_format": wanted},
        {"output_format": wanted} | effort,
    ):
        response_format = convert(**fields).response_format
        assert response_format is not None and response_format.json_schema is not None
        assert response_format.json_schema.schema == {"type": "object"}


FORM = {"type": "json_schema", "schema": {}}
THINKING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages must hold"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role must be one of user"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content is empty"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (user({"type": "image", "source": {"type": "url", "url": "http://x"}}), "text only"),
        (user({"type": "text", "text": "x"}, {"type": "document", "source": {}}), "messages[0].content[1].type"),
        (user({"type": "server_tool_use", "id": "t", "name": "f", "input": {}}), "this server runs no tools itself"),
        (user(RESULT), "messages[0].content[0].tool_use_id: no earlier tool_use block has the id 'toolu_1'"),
        (user(CALL), "messages[0].content[0]: a tool_use block belongs into a message of the assistant"),
        (user({"type": "thinking", "thinking": "hm"}), "belongs into a message of the assistant"),
        ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "belongs into a message of the user"),
        ({"messages": answered(RESULT)[:2]}, "messages[1].content: tool_use blocks need their tool_result blocks"),
        ({"messages": answered(RESULT, call={"type": "redacted_thinking"})[:2]}, "messages[1].content has no text"),
        ({"messages": answered(RESULT, call=CALL | {"input": None})}, "messages[1].content[0].input is required"),
        ({"messages": answered(RESULT, call=CALL | {"input": "{}"})}, "messages[1].content[0].input"),
        ({"messages": answered(RESULT, call=CALL | {"id": ""})}, "messages[1].content[0].id is required"),
        ({"messages": answered(RESULT, call=CALL | {"caller": {"type": "x"}})}, "content[0].caller"),
        ({"messages": answered({"type": "tool_result"})}, "messages[2].content[0].tool_use_id is required"),
        (
            {"messages": answered(RESULT | {"content": [{"type": "image", "source": {}}]})},
            "messages[2].content[0].content[0].type",
        ),
        (user({"type": "text"}), "messages[0].content[0].text is required"),
        (user({"type": "text", "text": "x", "is_error": True}), "messages[0].content[0].is_error needs the type"),
        (user({"type": "text", "text": "x", "citations": [{"type": "char_location"}]}), "content[0].citations"),
        (user({"type": "text", "text": "x", "cach_control": {}}), "did you mean cache_control?"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type"),
        ({"tools": [{"type": "computer_20250124", "name": "c", "display_width_px": 9}]}, "tools[0].type"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [TOOL | {"input_examples": [nested(100)]}]}, "tools[0].input_examples is nested deeper"),
        ({"messages": answered(RESULT, call=CALL | {"input": nested(100)})}, "messages[1].content[0].input is nested"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is required"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name is required"),
        ({"tools": [TOOL | {"parameters": {}}]}, "tools[0].parameters is not a known field"),
        ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call, but there are no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name: there is no tool 'f'"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": "get_weather"}}, "tool_choice.name needs the type"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is required"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens must be at least 1"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 9}}, "thinking.budget_tokens needs the type"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "regex"}}}, "output_config.format"),
        ({"output_config": {"format": FORM}, "output_format": FORM}, "output_format is the older name"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences may hold 16"),
        ({"stop_sequences": ["x", ""]}, "stop_sequences[1] must have 1 to 256 characters"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_token": 5}, "did you mean max_tokens?"),
        ({"cache_control": {"type": "forever"}}, "cache_control.type"),
    ],
)
def test_refusals_name_the_field_and_the_remedy(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        convert(**fields)
    assert words in str(caught.value)
    assert caught.value.status == 400


def test_thinking_needs_a_model_that_reasons() -> None:
    with pytest.raises(RequestError, match="--reasoning-parser"):
        convert(NO_THOUGHTS, **THINKING)


def test_errors_of_the_chat_request_get_anthropics_names() -> None:
    for message, expected in (
        ("tools[3].function.parameters is too deep", "tools[3].input_schema is too deep"),
        ("tools[0].function.name is twice there", "tools[0].name is twice there"),
        ("response_format.json_schema.schema: no", "output_config.format.schema: no"),
    ):
        error = rename_fields(RequestError(message, param=message.split()[0]))
        assert str(error) == expected
        assert error.param == expected.split()[0]


def test_a_refused_value_may_be_deep() -> None:
    """The parser lets through what it can just read; from deeper in the stack that is one level too many."""
    block = MessageBlock(type="text", text="x", citations=Raw(b"[" * 2000 + b"]" * 2000))
    with pytest.raises(RequestError, match="citations is not supported"):
        check_refused(block, refused_fields(MessageBlock))


def test_null_means_not_given() -> None:
    names = (name for name in MessagesRequest.__struct_fields__ if name not in ("max_tokens", "messages"))
    assert convert(**dict.fromkeys(names)) == convert()


def test_counting_needs_no_max_tokens() -> None:
    body = {"messages": [QUESTION], "tools": [TOOL], "system": "Be brief."}
    request = BodyParser(CountTokensRequest).parse(json.dumps(body).encode())
    counted, answered = to_chat_prompt(request, THINKS), convert(tools=[TOOL], system="Be brief.")
    assert (counted.messages, counted.tools) == (answered.messages, answered.tools)
