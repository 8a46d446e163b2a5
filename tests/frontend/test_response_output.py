"""The output of /v1/responses as a state machine: its items, and the events that tell of them."""

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engined.frontend.api.response_events import ResponseEvent
from engined.frontend.api.response_items import ItemStatus
from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engined.frontend.serving.responses.output import ResponseOutput

CALLS: list[OutputEvent] = [
    ToolCallBegin(index=0, name="f", call_id="call_a"),
    ToolCallArguments(index=0, text='{"city": "Rome"}'),
    ToolCallEnd(index=0),
    ToolCallBegin(index=1, name="g", call_id="call_b"),
    ToolCallArguments(index=1, text="{}"),
    ToolCallEnd(index=1),
]
ANSWERS: list[list[OutputEvent]] = [
    [],
    [ContentText("Hello.")],
    [ReasoningText("I think.")],
    [ReasoningText("I think."), ContentText("Hello.")],
    [ReasoningText("I think."), *CALLS],
    [ReasoningText("I think."), ContentText("Hello."), *CALLS],
    [ContentText("Hello."), *CALLS, ContentText("And that is that.")],
    [ReasoningText("One."), ContentText("Two."), ReasoningText("Three."), *CALLS],
    CALLS[:2],
    CALLS[:5],
    [*CALLS[:2], ContentText("broken off")],
]


def cut_up(found: list[OutputEvent], source: random.Random) -> list[list[OutputEvent]]:
    """The same in pieces, some of which come together."""
    batches: list[list[OutputEvent]] = [[]]
    for event in found:
        pieces = [event]
        if not isinstance(event, ToolCallBegin | ToolCallEnd):
            middle = source.randint(1, len(event.text) - 1)
            pieces = [replace(event, text=text) for text in (event.text[:middle], event.text[middle:])]
        for piece in pieces:
            batches[-1].append(piece)
            if source.random() < 0.5:
                batches.append([])
    return batches


def run(batches: list[list[OutputEvent]], status: ItemStatus) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Items and events."""
    output = ResponseOutput()
    events: list[ResponseEvent] = []
    for batch in batches:
        events += output.take(batch, [])
    events += output.finish(status)
    return [*map(msgspec.to_builtins, output.items(status))], [*map(msgspec.to_builtins, events)]


def rebuild(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a client puts them together from deltas alone; checks each event against its item."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            assert event["item"]["status"] == "in_progress"
            assert all(item["status"] != "in_progress" for item in items)
            items.append(event["item"])
            continue
        item = items[event["output_index"]]
        assert item is items[-1]
        if kind == "output_item.done":
            assert {**item, "status": event["item"]["status"]} == event["item"]
            item["status"] = event["item"]["status"]
            continue
        assert event["item_id"] == item["id"]
        if kind == "content_part.added":
            assert item["content"] == [] and event["content_index"] == 0
            item["content"].append(event["part"])
        elif kind == "content_part.done":
            assert item["content"] == [event["part"]]
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            assert event["delta"]
            item["content"][0]["text"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert item["content"][0]["text"] == event["text"]
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        else:
            assert kind == "function_call_arguments.done"
            assert (item["arguments"], item["name"]) == (event["arguments"], event["name"])
    return items


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


@pytest.mark.parametrize("found", ANSWERS)
@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_events_tell_the_items_however_the_text_is_cut(found: list[OutputEvent], status: ItemStatus) -> None:
    whole, _ = run([found], status)
    for seed in range(20):
        items, events = run(cut_up(found, random.Random(seed)), status)
        assert rebuild(events) == items
        assert without_ids(items) == without_ids(whole)
        assert len({item["id"] for item in items}) == len(items)


def test_items_stand_in_the_order_of_the_text() -> None:
    items, events = run([ANSWERS[5]], "completed")
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["id"].partition("_")[0] for item in items] == ["rs", "msg", "fc", "fc"]
    assert items[0]["summary"] == [] and items[0]["content"] == [{"type": "reasoning_text", "text": "I think."}]
    assert items[2]["call_id"] == "call_a" and items[2]["arguments"] == '{"city": "Rome"}'
    assert [event["type"] for event in events[:6]] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert [event["type"] for event in events[-4:]] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


def test_only_an_answer_that_says_nothing_is_an_empty_message() -> None:
    items, _ = run([[]], "completed")
    assert without_ids(items) == [
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}],
        }
    ]
    assert [item["type"] for item in run([[ReasoningText("Hm.")]], "completed")[0]] == ["reasoning"]


def test_a_call_that_is_cut_off_is_incomplete_and_keeps_its_beginning() -> None:
    for status in ("completed", "incomplete"):
        cut: list[OutputEvent] = [CALLS[0], ToolCallArguments(index=0, text='{"ci')]
        items, _ = run([cut], status)
        assert (items[0]["status"], items[0]["arguments"]) == ("incomplete", '{"ci')
    items, _ = run([CALLS], "incomplete")
    assert [item["status"] for item in items] == ["completed", "completed"]
