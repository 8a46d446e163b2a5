"""Answers with thinking and calls: Anthropic's accumulator must read from every stream what the whole answer says."""

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message

from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.parsing.format import OutputFormat
from engined.frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS, new_parser
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.serving.generation import Usage
from engined.frontend.serving.messages.formatter import MessageFormatter
from engined.frontend.serving.messages.tool_input import tool_input
from engined.frontend.serving.parsed_choices import MessageParsing

FORMAT = OutputFormat(reasoning=REASONING_FORMATS["think"], tools=TOOL_FORMATS["hermes"])
CONTEXT = ParserContext(tools={"get": {"type": "object"}, "set": {"type": "object"}})
THOUGHT = "<think>\nHm, 你好.\n</think>\n\n"
ARGUMENTS = '{"city": "Pa\\u00efs \\ud83d\\ude00", "days": [1, -2.5e3, null]}'
GET = f'<tool_call>\n{{"name": "get", "arguments": {ARGUMENTS}}}\n</tool_call>'
SET = '<tool_call>\n{"name": "set", "arguments": {}}\n</tool_call>'
INPUT = {"city": "Païs 😀", "days": [1, -2500.0, None]}


def formatter(**parsing: Any) -> MessageFormatter:
    how = MessageParsing(new_parser=lambda: new_parser(FORMAT, CONTEXT), count_tokens=len, **parsing)
    return MessageFormatter("msg_1", "smol", "req_1", how)


def usage() -> Usage:
    return Usage(num_prompt_tokens=9)


def whole(text: str, finish_reason: str = "stop", stop_reason: str | None = None, **parsing: Any) -> dict[str, Any]:
    output = ChoiceOutput(index=0, text=text, finish_reason=finish_reason, stop_reason=stop_reason)
    return formatter(**parsing).whole([output], usage())


def events(pieces: list[str], finish_reason: str = "stop") -> list[dict[str, Any]]:
    building, used = formatter(), usage()
    data = building.begin()
    for position, piece in enumerate(pieces):
        ending = finish_reason if position == len(pieces) - 1 else None
        data += building.chunk(ChoiceOutput(index=0, text=piece, finish_reason=ending), used)
    data += building.end(used)
    return [json.loads(event.partition("data: ")[2]) for event in data.decode().split("\n\n")[:-1]]


def accumulated(told: list[dict[str, Any]]) -> dict[str, Any]:
    """What Anthropic's client makes of a stream."""
    message, buffers = None, dict[int, bytes]()
    for event in told:
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)  # type: ignore[arg-type]
    assert message is not None
    fields = message.to_dict()
    assert fields.pop("stop_details") is None
    return fields


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    for block in message["content"]:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_")
    return message


TEXTS = [
    "",
    "Hello.",
    THOUGHT,
    THOUGHT + "Hello.",
    THOUGHT + "Let me see." + GET,
    THOUGHT + GET + "\n" + SET,
    GET + "\nDone." + SET,
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_streams_say_what_whole_answers_say(text: str, finish_reason: str) -> None:
    expected = without_ids(whole(text, finish_reason))
    for size in (1, 2, 7, 1000):
        pieces = [text[start : start + size] for start in range(0, len(text), size)] or [""]
        assert without_ids(accumulated(events(pieces, finish_reason))) == expected


def test_answers_that_were_cut_off_anywhere() -> None:
    text = THOUGHT + "Look: " + GET + SET
    for end in range(len(text)):
        cut = text[:end]
        expected = without_ids(whole(cut, "length"))
        assert expected["stop_reason"] == "max_tokens"
        assert without_ids(accumulated(events([*cut, ""], "length"))) == expected
        Message.model_validate(whole(cut, "length"))


def test_blocks_stand_in_the_order_of_the_text() -> None:
    message = whole(THOUGHT + "Look:" + GET + "\n" + SET)
    assert without_ids(message)["content"] == [
        {"type": "thinking", "thinking": "Hm, 你好.", "signature": "engined"},
        {"type": "text", "text": "Look:"},
        {"type": "tool_use", "name": "get", "input": INPUT},
        {"type": "tool_use", "name": "set", "input": {}},
    ]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": len("Hm, 你好.")}
    told = events([*THOUGHT, *GET])
    assert [event["index"] for event in told if event["type"] == "content_block_stop"] == [0, 1]
    open_blocks: list[int] = []
    for event in told:
        match event["type"]:
            case "content_block_start":
                assert not open_blocks
                open_blocks.append(event["index"])
            case "content_block_delta":
                assert [event["index"]] == open_blocks
            case "content_block_stop":
                assert open_blocks.pop() == event["index"]


def test_a_block_ends_as_soon_as_its_call_is_whole() -> None:
    building, used = formatter(), usage()
    told = building.chunk(ChoiceOutput(index=0, text=GET), used)
    assert b"event: content_block_stop" in told


def test_why_it_stopped() -> None:
    assert whole(GET, "length")["stop_reason"] == "max_tokens"
    assert whole(GET[:-20])["stop_reason"] == "end_turn"
    assert whole(GET, reports_tool_calls=False)["stop_reason"] == "tool_use"
    stopped = whole("Look", stop_reason="X")
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "X")


def test_what_the_request_left_out() -> None:
    message = whole(THOUGHT + GET + SET, includes_reasoning=False, has_parallel_calls=False)
    assert [block["type"] for block in message["content"]] == ["tool_use"]
    assert message["usage"]["output_tokens_details"]["thinking_tokens"]


def test_ids_that_a_template_demands() -> None:
    [block] = whole(GET, call_ids="function_index", num_earlier_calls=2)["content"]
    assert block["id"] == "functions.get:2"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": {"b": [1, {"c": "d', {"a": {"b": [1, {}]}}),
        ('{"a": tru', {}),
        ('{"a": true', {"a": True}),
        ('{"a": "x", "b', {"a": "x"}),
        ('{"a": 1.', {}),
        ('{"a": "}\\"]", "b": {"c": 1}, ', {"a": '}"]', "b": {"c": 1}}),
        ("", {}),
        ("[1]", {}),
        ('{"a": "\\ud83d"}', {}),
        ('{"a":' * 5000, {}),
    ],
)
def test_input_is_what_is_whole_of_the_arguments(arguments: str, expected: dict[str, Any]) -> None:
    assert tool_input(arguments) == expected
