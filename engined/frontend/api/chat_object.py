"""The answer of /v1/chat/completions, whole and in chunks, as /openapi.json describes it; `chat_format` builds it."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from engined.frontend.api.usage_object import FinishReason, PromptLogprobs, Usage


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
    """With logprobs: one entry for each token."""

    content: list[GeneratedTokenLogprob]
    refusal: None


class AssistantMessage(Struct, kw_only=True):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    refusal: None
    annotations: list[dict[str, str]]
    """Always empty: the model searches nothing."""


class ChatChoice(Struct, kw_only=True):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop text or the stop token that ended it; null for the end-of-text token and for lengths."""
    token_ids: list[int] | UnsetType = UNSET
    """With return_token_ids."""


class ChatCompletion(Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET
    """With return_token_ids."""
    prompt_text: str | None | UnsetType = UNSET
    """With return_prompt_text."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """With prompt_logprobs."""


class ChatDelta(Struct, kw_only=True):
    """What is new; the role comes once, first."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    """The next piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
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
    usage: Usage | None | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | None | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
