"""The response object of /v1/responses and what it is made of. Frontend process; built by `serving/responses`."""

from typing import Any, Literal

from msgspec import Struct, field

from engined.frontend.api.response_items import Item, OutputItem

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseErrorObject(Struct, kw_only=True):
    """Why a response failed."""

    code: Literal["server_error"]
    message: str


class IncompleteDetails(Struct, kw_only=True):
    """Why a response is incomplete: max_output_tokens or the end of the context; or its timeout_s."""

    reason: Literal["max_output_tokens", "timeout"]


class InputTokensDetails(Struct, kw_only=True):
    """Of the input, what the prefix cache had. Nothing is billed for writing to it."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, kw_only=True):
    """Of the output."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, kw_only=True):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class PlainTextFormat(Struct, kw_only=True, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectTextFormat(Struct, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaTextFormat(Struct, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON of a schema, as it was asked for."""

    name: str
    """As it was asked for; "response" if it had none."""
    description: str | None
    schema: dict[str, Any] | bool | None
    strict: bool | None


ResponseTextFormat = PlainTextFormat | JsonObjectTextFormat | JsonSchemaTextFormat


class ResponseTextConfig(Struct, kw_only=True):
    """How the text looks."""

    format: ResponseTextFormat = field(default_factory=PlainTextFormat)


class ResponseReasoning(Struct, kw_only=True):
    """How the model was asked to think."""

    effort: str | None = None
    summary: None = None
    """There are no summaries; the reasoning itself is an item of the output."""


class FunctionTool(Struct, kw_only=True, tag_field="type", tag="function"):
    """A function that the model could call."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class FunctionChoice(Struct, kw_only=True, tag_field="type", tag="function"):
    """The name of a function: the one that had to be called, or one that could be."""

    name: str


class AllowedToolsChoice(Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The tools that could or had to be called."""

    mode: Literal["auto", "required"]
    tools: list[FunctionChoice]


ShownToolChoice = Literal["none", "auto", "required"] | FunctionChoice | AllowedToolsChoice


class Response(Struct, kw_only=True):
    """The response object: what POST answers, what the events carry, what GET gives back."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    error: ResponseErrorObject | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem] = field(default_factory=list)
    usage: ResponseUsage | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool
    """Whether GET will find it, until newer ones displace it."""
    metadata: dict[str, str]
    max_output_tokens: int | None = None
    temperature: float
    top_p: float
    top_logprobs: int
    truncation: Literal["auto", "disabled"]
    text: ResponseTextConfig = field(default_factory=ResponseTextConfig)
    reasoning: ResponseReasoning = field(default_factory=ResponseReasoning)
    tools: list[FunctionTool] = field(default_factory=list)
    tool_choice: ShownToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    background: Literal[False] = False
    service_tier: Literal["default"] = "default"
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class InputItemList(Struct, kw_only=True):
    """A page of the items that a response answered."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Struct, kw_only=True):
    """What DELETE answers."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokenCount(Struct, kw_only=True):
    """What POST /v1/responses/input_tokens answers."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
