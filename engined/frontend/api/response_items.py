"""The items of a conversation in /v1/responses: those that were sent, and those of the answers. Frontend process; built
by `serving/responses`, kept in its store, and part of the objects in `response_object` and `response_events`."""

from typing import Any, Literal

from msgspec import Struct, field

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system", "developer"]


class TopLogprob(Struct, kw_only=True):
    """An alternative of one position."""

    token: str
    logprob: float
    bytes: list[int]


class ResponseLogprob(Struct, kw_only=True):
    """One generated token."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class InputText(Struct, kw_only=True, tag_field="type", tag="input_text"):
    """Text of a user, system or developer message, or of a tool's result."""

    text: str


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    """Text of an answer."""

    text: str
    annotations: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[ResponseLogprob] = field(default_factory=list)
    """Filled if the request includes "message.output_text.logprobs"."""


class RefusalText(Struct, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal, in an answer that another server gave."""

    refusal: str


class ReasoningPart(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class SummaryPart(Struct, kw_only=True, tag_field="type", tag="summary_text"):
    """A summary of what a model thought, which another server gave."""

    text: str


class MessageItem(Struct, kw_only=True, tag_field="type", tag="message"):
    """A message of the conversation: of the input, or of the answer."""

    id: str
    role: Role
    status: ItemStatus
    content: list[InputText | OutputText | RefusalText]


class ReasoningItem(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought before what follows."""

    id: str
    summary: list[SummaryPart] = field(default_factory=list)
    """Empty in answers: the whole reasoning is there."""
    content: list[ReasoningPart]
    status: ItemStatus


class FunctionCallItem(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a tool."""

    id: str
    call_id: str
    """What the item with the result names."""
    name: str
    arguments: str
    """A JSON object, as a text; the beginning of one if the item is incomplete."""
    status: ItemStatus


class FunctionCallOutputItem(Struct, kw_only=True, tag_field="type", tag="function_call_output"):
    """The result of a call."""

    id: str
    call_id: str
    name: str | None = None
    output: str | list[InputText]
    status: ItemStatus


OutputItem = MessageItem | ReasoningItem | FunctionCallItem
Item = OutputItem | FunctionCallOutputItem
