"""What a model has said, as the messages and deltas of chat completions. Pure; called by `chat_format`."""

from collections.abc import Sequence
from typing import Any

from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
)
from engined.frontend.serving.parsed_choices import ParsedCall, ParsedMessage

Delta = dict[str, Any]


def chat_message(message: ParsedMessage, echo_text: str) -> dict[str, Any]:
    """The `message` of a whole answer, whose content begins with `echo_text`."""
    content = echo_text + message.content
    fields: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not message.calls else None,
        "refusal": None,
        "annotations": [],
    }
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.calls:
        fields["tool_calls"] = [_tool_call(call) for call in message.calls]
    return fields


def chat_deltas(events: Sequence[OutputEvent]) -> list[Delta]:
    """The deltas of a stream, in order. Neighbours of one kind are joined; the ends of calls show in no delta."""
    deltas: list[Delta] = []
    previous: OutputEvent | None = None
    for event in events:
        match event:
            case ContentText(text) | ReasoningText(text):
                field = "content" if isinstance(event, ContentText) else "reasoning_content"
                if type(previous) is type(event):
                    deltas[-1][field] += text
                else:
                    deltas.append({field: text})
            case ToolCallBegin(index, name, call_id):
                function = {"name": name, "arguments": ""}
                deltas.append(
                    {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
                )
            case ToolCallArguments(index, text):
                if isinstance(previous, ToolCallArguments) and previous.index == index:
                    deltas[-1]["tool_calls"][0]["function"]["arguments"] += text
                else:
                    deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        previous = event
    return deltas


def _tool_call(call: ParsedCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
