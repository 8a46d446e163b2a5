"""The formatter of chat completions: reasoning, content and tool calls, whole and in chunks, which must be the same."""

import json
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.parsing.format import OutputFormat
from engined.frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS, new_parser
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.serving.chat_format import ChatFormatter, ChatShape
from engined.frontend.serving.generation import Usage
from engined.frontend.serving.parsed_choices import MessageParsing

CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
FIND = CALL % ("find", '{"text":  "a \\"b\\" 你"}')
COUNT = CALL % ("count", '{"n": 3}')
WITH_FORMATS = OutputFormat(reasoning=REASONING_FORMATS["think"], tools=TOOL_FORMATS["hermes"])
WITHOUT_FORMATS = OutputFormat()


def make_formatter(output_format: OutputFormat = WITH_FORMATS, **options: Any) -> ChatFormatter:
    shape = ChatShape(
        response_id="chatcmpl-1",
        created=1,
        model="m",
        num_choices=options.pop("num_choices", 1),
        echo_text=options.pop("echo_text", ""),
        has_logprobs=False,
        has_prompt_logprobs=False,
        has_token_ids=options.pop("has_token_ids", False),
        prompt_token_ids=None,
        prompt_text=None,
        include_usage=True,
        continuous_usage=options.pop("continuous_usage", False),
    )
    context = ParserContext(tools={"find": {}, "count": {}}, is_reasoning_open=options.pop("is_open", True))
    parsing = MessageParsing(
        new_parser=lambda: new_parser(output_format, context),
        count_tokens=lambda text: len(text.split()),
        **options,
    )
    return ChatFormatter(shape, None, parsing)


def outputs_of(text: str, sizes: list[int], finish_reason: str, index: int = 0) -> list[ChoiceOutput]:
    """Deltas of so many characters, each character a token; the end comes with the last, or by itself."""
    outputs, position, turn = [], 0, 0
    while position < len(text):
        piece = text[position : position + sizes[turn % len(sizes)]]
        outputs.append(ChoiceOutput(index=index, text=piece, token_ids=[ord(character) for character in piece]))
        position, turn = position + len(piece), turn + 1
    if not outputs or sum(sizes) % 2:
        outputs.append(ChoiceOutput(index=index))
    outputs[-1].finish_reason = finish_reason
    return outputs


def whole_output(text: str, finish_reason: str) -> ChoiceOutput:
    token_ids = [ord(character) for character in text]
    return ChoiceOutput(index=0, text=text, token_ids=token_ids, finish_reason=finish_reason)


def usage_of(text: str) -> Usage:
    return Usage(num_prompt_tokens=1, num_completion_tokens=len(text))


def whole(formatter: ChatFormatter, text: str, finish_reason: str) -> dict[str, Any]:
    return formatter.whole([whole_output(text, finish_reason)], usage_of(text))


def chunks_of(formatter: ChatFormatter, outputs: list[ChoiceOutput], usage: Usage) -> list[dict[str, Any]]:
    data = formatter.begin() + b"".join(formatter.chunk(output, usage) for output in outputs) + formatter.end(usage)
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n") if event]


def accumulate(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The choice that a client makes of a stream."""
    message: dict[str, Any] = {}
    result: dict[str, Any] = {"token_ids": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            if "role" in delta:
                assert not message
                message |= delta
                continue
            assert len(delta) <= 1
            for field in ("content", "reasoning_content"):
                if field in delta:
                    message[field] = (message.get(field) or "") + delta[field]
            for piece in delta.get("tool_calls", []):
                add_piece(message.setdefault("tool_calls", []), piece)
            result["token_ids"] += choice.get("token_ids", [])
            if choice["finish_reason"] is not None:
                assert "finish_reason" not in result
                result |= {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
    return result | {"message": message}


def add_piece(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    if piece["index"] == len(calls):
        calls.append({"id": piece["id"], "type": piece["type"], "function": dict(piece["function"])})
        assert piece["function"]["arguments"] == ""
    else:
        assert piece.keys() == {"index", "function"} and piece["function"].keys() == {"arguments"}
        assert piece["index"] == len(calls) - 1 and piece["function"]["arguments"]
        calls[-1]["function"]["arguments"] += piece["function"]["arguments"]


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": "..."} for call in message.get("tool_calls", [])]
    kept = {name: message[name] for name in ("role", "content", "reasoning_content") if name in message}
    return kept | ({"tool_calls": calls} if calls else {})


PIECES = st.sampled_from(
    [
        FIND,
        COUNT,
        FIND[:40],
        "</think>",
        "</think>\n\n",
        "<think>",
        "Hello",
        " world\n",
        "<tool",
        "\n",
        "你",
        '{"a": 1}',
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(PIECES, max_size=6),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    finish_reason=st.sampled_from(["stop", "length"]),
    is_open=st.booleans(),
    options=st.fixed_dictionaries(
        {},
        optional={"has_parallel_calls": st.booleans(), "reports_tool_calls": st.booleans(), "echo_text": st.just("E")},
    ),
)
def test_streams_are_whole_answers(
    pieces: list[str], sizes: list[int], finish_reason: str, is_open: bool, options: dict[str, Any]
) -> None:
    text = "".join(pieces)
    options = {"is_open": is_open, "has_token_ids": True, **options}
    body = whole(make_formatter(**options), text, finish_reason)
    [choice] = body["choices"]
    usage = usage_of(text)
    chunks = chunks_of(make_formatter(**options), outputs_of(text, sizes, finish_reason), usage)
    streamed = accumulate(chunks)
    assert without_ids(streamed["message"]) == without_ids(choice["message"])
    for field in ("finish_reason", "stop_reason", "token_ids"):
        assert streamed[field] == choice[field]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == body["usage"]
    ids = [call["id"] for call in streamed["message"].get("tool_calls", [])]
    assert len(set(ids)) == len(ids) and all(call_id.startswith("call_") for call_id in ids)


@pytest.mark.parametrize(
    ("text", "options", "finish_reason", "message"),
    [
        ("I see.</think>\n\nHi", {}, "stop", {"reasoning_content": "I see.", "content": "Hi"}),
        ("", {}, "stop", {"content": ""}),
        ("I am", {}, "stop", {"reasoning_content": "I am", "content": ""}),
        ("Hi", {"is_open": False}, "stop", {"content": "Hi"}),
        ("</think>\n\n" + FIND, {}, "tool_calls", {"content": None, "tool_calls": ["find"]}),
        ("</think>\n\n" + FIND + "\n" + COUNT, {}, "tool_calls", {"content": None, "tool_calls": ["find", "count"]}),
        (
            "</think>\n\n" + FIND + "\n" + COUNT,
            {"has_parallel_calls": False},
            "tool_calls",
            {"content": None, "tool_calls": ["find"]},
        ),
        ("</think>\n\n" + FIND, {"reports_tool_calls": False}, "stop", {"content": None, "tool_calls": ["find"]}),
        ("</think>\n\n" + FIND, {"echo_text": "So: "}, "tool_calls", {"content": "So: ", "tool_calls": ["find"]}),
    ],
)
def test_what_the_parts_become(text: str, options: dict[str, Any], finish_reason: str, message: dict[str, Any]) -> None:
    [choice] = whole(make_formatter(**options), text, "stop")["choices"]
    assert choice["finish_reason"] == finish_reason
    fields = {name: value for name, value in choice["message"].items() if name in ("content", "reasoning_content")}
    names = [call["function"]["name"] for call in choice["message"].get("tool_calls", [])]
    assert fields | ({"tool_calls": names} if names else {}) == message


def test_arguments_grow_and_are_cut_off_as_they_are() -> None:
    text = "</think>\n\n" + FIND
    formatter = make_formatter()
    outputs = outputs_of(text[: text.index("你")], [3], "length")
    chunks = chunks_of(formatter, outputs, usage_of(text))
    streamed = accumulate(chunks)
    [call] = streamed["message"]["tool_calls"]
    assert streamed["finish_reason"] == "length"
    assert call["function"] == {"name": "find", "arguments": '{"text":  "a \\"b\\" '}
    num_pieces = sum("tool_calls" in choice["delta"] for chunk in chunks for choice in chunk["choices"])
    assert num_pieces > 5
    cut = text[: text.index("你")]
    [choice] = whole(make_formatter(), cut, "length")["choices"]
    assert choice["message"]["tool_calls"][0]["function"] == call["function"]


def test_one_chunk_has_what_belongs_to_a_delta() -> None:
    text = "I see.</think>\n\nHi" + FIND
    formatter = make_formatter(has_token_ids=True, continuous_usage=True)
    output = whole_output(text, "stop")
    chunks = chunks_of(formatter, [output], usage_of(text))[1:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [[*delta] for delta in deltas] == [["reasoning_content"], ["content"], ["tool_calls"], ["tool_calls"]]
    assert [chunk["choices"][0].get("token_ids") for chunk in chunks] == [None, None, None, output.token_ids]
    assert [chunk["usage"] is None for chunk in chunks] == [True, True, True, False]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "tool_calls"]
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_left_out_reasoning_is_counted() -> None:
    text = "I see.</think>\n\nHi"
    body = whole(make_formatter(includes_reasoning=False), text, "stop")
    assert "reasoning_content" not in body["choices"][0]["message"]
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    chunks = chunks_of(make_formatter(includes_reasoning=False), outputs_of(text, [2], "stop"), usage_of(text))
    assert "reasoning_content" not in accumulate(chunks)["message"]
    assert all(chunk["choices"][0]["delta"] for chunk in chunks[:2]), "nothing is sent while it thinks"


def test_choices_have_parsers_of_their_own() -> None:
    texts = ["I see.</think>\n\nHi", "</think>\n\n" + COUNT]
    turns = zip_longest(*(outputs_of(text, [5], "stop", index) for index, text in enumerate(texts)))
    outputs = [output for turn in turns for output in turn if output is not None]
    chunks = chunks_of(make_formatter(num_choices=2), outputs, usage_of("".join(texts)))
    first, second = (accumulate(chunks, index) for index in range(2))
    assert first["message"]["content"] == "Hi" and first["finish_reason"] == "stop"
    assert second["message"]["tool_calls"][0]["function"] == {"name": "count", "arguments": '{"n": 3}'}
    assert second["finish_reason"] == "tool_calls"


def test_without_formats_all_is_content() -> None:
    text = "I see.</think>\n\n" + FIND
    [choice] = whole(make_formatter(WITHOUT_FORMATS), text, "stop")["choices"]
    assert choice["message"]["content"] == text and choice["finish_reason"] == "stop"
    chunks = chunks_of(make_formatter(WITHOUT_FORMATS), outputs_of(text, [7], "stop"), usage_of(text))
    assert accumulate(chunks)["message"] == {"role": "assistant", "content": text}
