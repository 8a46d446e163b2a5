"""The events of a streamed response, in the order in which they come. Frontend process; numbered by the formatter."""

from msgspec import Struct

from engined.frontend.api.response_items import OutputItem, OutputText, ReasoningPart, ResponseLogprob
from engined.frontend.api.response_object import Response


class ResponseEvent(Struct, kw_only=True, tag_field="type"):
    """Any event; `type` is its name on the wire."""

    sequence_number: int = 0
    """From 0, without gaps; set when the event is written."""


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"):
    """The response has begun."""

    response: Response


class ResponseInProgress(ResponseEvent, kw_only=True, tag="response.in_progress"):
    """The response is being generated."""

    response: Response


class OutputItemAdded(ResponseEvent, kw_only=True, tag="response.output_item.added"):
    """An item of the output begins."""

    output_index: int
    item: OutputItem


class OutputItemDone(ResponseEvent, kw_only=True, tag="response.output_item.done"):
    """The item is as it will stay."""

    output_index: int
    item: OutputItem


class ItemEvent(ResponseEvent, kw_only=True):
    """Of one item."""

    item_id: str
    output_index: int


class ContentEvent(ItemEvent, kw_only=True):
    """Of the one part of a message or of a reasoning item."""

    content_index: int = 0


class ContentPartAdded(ContentEvent, kw_only=True, tag="response.content_part.added"):
    """The text begins."""

    part: OutputText | ReasoningPart


class OutputTextDelta(ContentEvent, kw_only=True, tag="response.output_text.delta"):
    """The next piece of text."""

    delta: str
    logprobs: list[ResponseLogprob]


class OutputTextDone(ContentEvent, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: list[ResponseLogprob]


class ReasoningTextDelta(ContentEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """The next piece of what the model thinks."""

    delta: str


class ReasoningTextDone(ContentEvent, kw_only=True, tag="response.reasoning_text.done"):
    """All that it thought."""

    text: str


class ContentPartDone(ContentEvent, kw_only=True, tag="response.content_part.done"):
    """The whole part."""

    part: OutputText | ReasoningPart


class FunctionCallArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """The next piece of the arguments."""

    delta: str


class FunctionCallArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """All of the arguments."""

    name: str
    arguments: str


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"):
    """The end: the model finished its answer."""

    response: Response


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    """The end: the answer was cut by max_output_tokens or by the context."""

    response: Response


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"):
    """The end: the generation failed."""

    response: Response


class ErrorEvent(ResponseEvent, kw_only=True, tag="error"):
    """What failed; `response.failed` follows."""

    message: str
    code: str | None
    param: str | None


EVENTS = (
    ResponseCreated,
    ResponseInProgress,
    OutputItemAdded,
    ContentPartAdded,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ContentPartDone,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    OutputItemDone,
    ResponseCompleted,
    ResponseIncomplete,
    ErrorEvent,
    ResponseFailed,
)
