"""The answer of /v1/chat/completions, whole and in chunks, as /openapi.json describes it; `chat_format` builds it."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from engined.frontend.api.usage_object import PromptLogprobs, Usage

ChatFinishReason = Literal["stop", "length", "tool_calls", "abort"]
"""stop: the model or a stop text ended it, or it called the tool that the request named; length: max_tokens or the
context, also in the midst of a call; tool_calls: it called tools; abort: a deadline or a shutdown."""


class CompletionTokensDetails(Struct, kw_only=True):
    """More about the answers."""

    reasoning_tokens: int
    """Those of the reasoning. A stream counts them when a choice ends."""


class ChatUsage(Usage, kw_only=True):
    """Tokens of one request. The prompt counts once, however many choices it has."""

    completion_tokens_details: CompletionTokensDetails


class TokenLogprob(Struct, kw_only=True):
    """A token and how probable it was."""

    token: str
    logprob: float
    """-9999.0 stands for a token that was impossible."""
    bytes: list[int]
    """UTF-8 of the token; one character may span several tokens."""


class GeneratedTokenLogprob(TokenLogprob, kw_only=True):
    """A token of the answer, and the most probable ones at its place, best first."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Struct, kw_only=True):
    """With logprobs: one entry for each token, those of reasoning and tool calls included."""

    content: list[GeneratedTokenLogprob]
    refusal: None


class CalledFunction(Struct, kw_only=True):
    """A function and what it is called with."""

    name: str
    arguments: str
    """JSON, as the model wrote it; cut off if finish_reason is length."""


class AnswerToolCall(Struct, kw_only=True):
    """A tool that the model calls."""

    id: str
    """Unique; the message with the result names it."""
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Struct, kw_only=True):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    """null beside tool calls, if there is nothing else."""
    refusal: None
    annotations: list[dict[str, str]]
    """Always empty: the model searches nothing."""
    reasoning_content: str | UnsetType = UNSET
    """What the model thought before, if it did."""
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    """null unless asked for, and with include_reasoning false."""
    finish_reason: ChatFinishReason
    stop_reason: str | int | None
    """The stop text or the stop token that ended it; null for the end-of-text token and for lengths."""
    token_ids: list[int] | UnsetType = UNSET
    """With return_token_ids, but not with include_reasoning false."""


class ChatCompletion(Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET
    """With return_token_ids."""
    prompt_text: str | None | UnsetType = UNSET
    """With return_prompt_text."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """With prompt_logprobs."""


class FunctionPiece(Struct, kw_only=True):
    """The name comes once, first; the pieces of the arguments make up their text."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallPiece(Struct, kw_only=True):
    """What is new of a call; id, type and name come once, first."""

    index: int
    """Of the call, among those of the answer."""
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionPiece


class ChatDelta(Struct, kw_only=True):
    """What is new; the role comes once, first."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | None | UnsetType = UNSET
    """null only beside the role."""
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPiece] | UnsetType = UNSET
    """One piece of one call."""


class ChatChunkChoice(Struct, kw_only=True):
    """The next piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    """null until the last piece."""
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(Struct, kw_only=True):
    """One event of a stream; the data of the last event is [DONE]."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    """One piece; none in the chunk with the usage."""
    usage: ChatUsage | None | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | None | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
