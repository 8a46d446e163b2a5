"""The items of a conversation in /v1/responses: what is refused in them, and the messages that they become."""

from typing import Any

import msgspec
import pytest

from engined.errors import RequestError
from engined.frontend.api.parser import BodyParser
from engined.frontend.api.response_input import ResponseInputItem, ResponseInputPart
from engined.frontend.api.response_items import InputText, Item, MessageItem, OutputText, RefusalText
from engined.frontend.api.responses import ResponsesRequest
from engined.frontend.serving.responses.items import check_results, parse_input
from engined.frontend.serving.responses.store import StoredItem
from engined.frontend.serving.responses.tools import parse_tool_choice, parse_tools, to_chat_tool_choice, to_chat_tools
from engined.frontend.serving.responses.turns import find_starts, to_messages


def parse_items(*items: dict[str, Any]) -> list[Item]:
    """As they come from the body, and out of the store."""
    parsed = parse_input(parse_body(input=items).input)
    return [StoredItem.pack(item).unpack() for item in parsed]


def parse_body(**fields: Any) -> ResponsesRequest:
    return BodyParser(ResponsesRequest).parse(msgspec.json.encode({"input": "x", **fields}))


def messages_of(*items: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages, without what they leave out."""
    messages: list[dict[str, Any]] = _given(msgspec.to_builtins(to_messages(parse_items(*items))))
    return messages


def _given(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _given(item) for name, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list) else value


def test_items_become_messages() -> None:
    items = parse_input(
        [
            ResponseInputItem(role="system", content="be brief"),
            ResponseInputItem(
                type="message",
                role="user",
                content=[
                    ResponseInputPart(type="input_text", text="one"),
                    ResponseInputPart(type="input_text", text="two"),
                ],
            ),
            ResponseInputItem(role="assistant", content=[ResponseInputPart(type="input_text", text="three")]),
            ResponseInputItem(role="assistant", content=[ResponseInputPart(type="refusal", refusal="no")]),
        ]
    )
    assert [item.content for item in items if isinstance(item, MessageItem)] == [
        [InputText(text="be brief")],
        [InputText(text="one"), InputText(text="two")],
        [OutputText(text="three")],
        [RefusalText(refusal="no")],
    ]
    assert len({item.id for item in items}) == 4
    messages = to_messages(StoredItem.pack(item).unpack() for item in items)
    assert [message.role for message in messages] == ["system", "user", "assistant", "assistant"]
    assert [message.content for message in messages if isinstance(message.content, str)] == ["be brief", "three", "no"]
    parts = messages[1].content
    assert isinstance(parts, list) and [part.text for part in parts] == ["one", "two"]


BAD_INPUTS: list[tuple[str, str, str]] = [
    ("[]", "input", "empty"),
    ('[{"content": "x"}]', "input[0].role", "must be one of"),
    ('[{"role": "tool", "content": "x"}]', "input[0].role", "must be one of"),
    ('[{"role": "user"}]', "input[0].content", "required"),
    ('[{"role": "user", "content": []}]', "input[0].content", "no parts"),
    ('["x"]', "input[0]", "expected object"),
    ('[{"role": "user", "content": 5}]', "input[0].content", "expected"),
    ('[{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}]',
     "input[1].content[0].type", "must be input_text"),
    ('[{"role": "user", "content": [{"type": "input_text"}]}]', "input[0].content[0].text", "required"),
    ('[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]',
     "input[0].content[0].type", "text only"),
    ('[{"role": "user", "content": [{"type": "input_text", "text": "x", "image_url": "x"}]}]',
     "input[0].content[0].image_url", "text only"),
    ('[{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]',
     "input[0].content[0].type", "must be input_text"),
    ('[{"role": "user", "content": "x", "name": "Bob"}]', "input[0].name", "leave it out"),
    ('[{"role": "user", "content": "x", "contents": "x"}]', "input[0].contents", "did you mean content?"),
    ('[{"role": "user", "content": "x", "call_id": "c"}]', "input[0].call_id", "message item"),
    ('[{"type": "function_call_output", "call_id": "c", "output": "5"}]', "input[0].call_id", "previous_response_id"),
    ('[{"type": "function_call_output", "call_id": "c"}]', "input[0].output", "required"),
    ('[{"type": "function_call_output", "output": ""}]', "input[0].call_id", "required"),
    ('[{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "x"}]}]',
     "input[0].output[0].type", "text only"),
    ('[{"type": "function_call", "call_id": "c", "name": "f"}]', "input[0].arguments", "required"),
    ('[{"type": "function_call", "call_id": "", "name": "f", "arguments": "{}"}]', "input[0].call_id", "empty"),
    ('[{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}]', "input[0].arguments", "object"),
    ('[{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]', "input[0].arguments", "incomplete"),
    ('[{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "output": ""}]',
     "input[0].output", "function_call item"),
    ('[{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}]',
     "input[0].encrypted_content", "content"),
    ('[{"type": "reasoning", "content": "x"}]', "input[0].content", "list"),
    ('[{"type": "reasoning", "content": [{"type": "summary_text", "text": "x"}]}]',
     "input[0].content[0].type", "reasoning_text"),
    ('[{"type": "item_reference", "id": "msg_1"}]', "input[0].type", "previous_response_id"),
    ('[{"type": "custom_tool_call", "call_id": "x", "input": "x"}]', "input[0].type", "function_call"),
    ('[{"type": "computer_call", "id": "x", "action": {}}]', "input[0].type", "items may be"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "param", "text"), BAD_INPUTS)
def test_bad_items_are_refused_by_name(value: str, param: str, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_results(parse_input(BodyParser(ResponsesRequest).parse(b'{"input": ' + value.encode() + b"}").input), ())
    assert caught.value.param == param
    assert caught.value.status == 400
    assert text in str(caught.value).lower() and param in str(caught.value)


QUESTION = {"role": "user", "content": "What is the weather?"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
SAID = {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'}
CALL_2 = {**CALL, "call_id": "c2", "arguments": '{"city":"Oslo"}', "id": "fc_2", "status": "completed"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
RESULT_2 = {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "snow"}]}


def tool_call(item: dict[str, Any]) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def test_an_answer_of_several_items_is_one_message() -> None:
    calls = [tool_call(CALL), tool_call(CALL_2)]
    results = [
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": "snow"},
    ]
    said = {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": calls}
    assert messages_of(QUESTION, THOUGHT, SAID, CALL, CALL_2, RESULT, RESULT_2) == [QUESTION, said, *results]
    assert messages_of(QUESTION, THOUGHT, CALL, SAID, CALL_2, RESULT, RESULT_2) == [QUESTION, said, *results]
    silent = {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": calls}
    assert messages_of(QUESTION, THOUGHT, CALL, CALL_2, RESULT_2, RESULT) == [QUESTION, silent, *results[::-1]]


def test_reasoning_belongs_to_what_follows_or_else_to_what_precedes() -> None:
    thinking = {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm."}
    assert messages_of(QUESTION, THOUGHT, SAID, QUESTION) == [QUESTION, thinking, QUESTION]
    assert messages_of(QUESTION, SAID, THOUGHT, QUESTION) == [QUESTION, thinking, QUESTION]
    assert messages_of(QUESTION, SAID, THOUGHT, CALL, RESULT)[1:3] == [
        {"role": "assistant", "content": "Let me see."},
        {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [tool_call(CALL)]},
    ]
    assert messages_of(QUESTION, THOUGHT) == [
        QUESTION,
        {"role": "assistant", "content": "", "reasoning_content": "Hm."},
    ]
    assert messages_of(QUESTION, THOUGHT, THOUGHT, SAID)[1]["reasoning_content"] == "Hm.\nHm."
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "In short."}]}
    assert messages_of(QUESTION, summary, SAID)[1]["reasoning_content"] == "In short."
    assert "reasoning_content" not in messages_of(QUESTION, {"type": "reasoning", "summary": []}, SAID)[1]


def test_answers_that_were_sent_as_messages_stay_apart() -> None:
    said = {"role": "assistant", "content": "Let me see."}
    assert messages_of(QUESTION, SAID, SAID) == [QUESTION, said, said]


def test_a_call_that_was_cut_off_was_never_made() -> None:
    cut = {**CALL, "arguments": '{"ci', "status": "incomplete"}
    assert messages_of(QUESTION, cut, QUESTION) == [QUESTION, {"role": "assistant", "content": ""}, QUESTION]
    assert messages_of(QUESTION, CALL, {**cut, "call_id": "c2"})[1]["tool_calls"] == [tool_call(CALL)]
    with pytest.raises(RequestError) as caught:
        check_results(parse_items(QUESTION, cut, RESULT), ())
    assert caught.value.param == "input[2].call_id"
    check_results(parse_items(RESULT), parse_items(QUESTION, CALL))


def test_truncation_begins_at_a_question() -> None:
    items = parse_items(SAID, QUESTION, THOUGHT, CALL, RESULT, SAID, {"role": "system", "content": "x"}, QUESTION, SAID)
    assert find_starts(items) == [0, 1, 6, 7]


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FLAT = {"type": "function", "name": "weather", "description": "The weather.", "parameters": PARAMETERS, "strict": True}
NESTED = {"type": "function", "function": {name: value for name, value in FLAT.items() if name != "type"}}


def test_flat_tools_become_nested() -> None:
    tools = parse_tools(parse_body(tools=[FLAT, {"type": "function", "name": "now"}]).tools)
    nested = msgspec.to_builtins(to_chat_tools(tools))
    assert nested[0] == NESTED
    assert nested[1]["function"] == {"name": "now", "description": None, "parameters": None, "strict": False}
    assert msgspec.to_builtins(tools)[0] == FLAT
    assert to_chat_tools(parse_tools(parse_body(tools=[]).tools)) is None


@pytest.mark.parametrize(
    ("flat", "nested"),
    [
        ("none", "none"),
        ("required", "required"),
        (None, "auto"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
        ),
    ],
)
def test_flat_choices_become_nested(flat: Any, nested: Any) -> None:
    choice = parse_tool_choice(parse_body(tool_choice=flat).tool_choice)
    assert msgspec.to_builtins(choice) == (flat or "auto")
    found = msgspec.to_builtins(to_chat_tool_choice(choice))
    if isinstance(nested, dict):
        found = {name: value for name, value in found.items() if value is not None}
    assert found == nested


BAD_TOOLS: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [FLAT, {"type": "web_search", "search_context_size": "low"}]}, "tools[1].type", "runs no tools itself"),
    ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "y"}]}, "tools[0].type", "describe a function"),
    ({"tools": [{"type": "file_search", "vector_store_ids": ["x"]}]}, "tools[0].type", "describe a function"),
    ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools[0].type", "describe a function"),
    ({"tools": [{"type": "custom", "name": "x", "format": {"type": "text"}}]}, "tools[0].type", "string parameter"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "required"),
    ({"tools": [{**FLAT, "defer_loading": True}]}, "tools[0].defer_loading", "sees all tools"),
    ({"tools": [NESTED]}, "tools[0].function", "not a known field"),
    ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type", "runs no tools itself"),
    ({"tool_choice": {"type": "custom", "name": "x"}}, "tool_choice.type", "string parameter"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name", "required"),
    ({"tool_choice": {"type": "allowed_tools", "tools": [FLAT]}}, "tool_choice.tools[0]", "not a known field"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools", "required"),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "image_generation"}]}},
        "tool_choice.tools[0].type",
        "describe a function",
    ),
]


@pytest.mark.parametrize(("fields", "param", "text"), BAD_TOOLS)
def test_bad_tools_are_refused_by_name(fields: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        request = parse_body(**fields)
        parse_tools(request.tools)
        parse_tool_choice(request.tool_choice)
    assert caught.value.param is not None and caught.value.param.startswith(param)
    assert text in str(caught.value) and param in str(caught.value)
