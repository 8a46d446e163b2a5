"""The answer of /v1/completions, whole and in chunks, as /openapi.json describes it; `completion_format` builds it."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from engined.frontend.api.usage_object import FinishReason, PromptLogprobs, Usage


class CompletionLogprobs(Struct, kw_only=True):
    """With logprobs: four lists of the same length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """null for the first token of an echoed prompt."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Where each token begins, in characters of the choice's text."""


class CompletionChunkChoice(Struct, kw_only=True):
    """The next piece of one continuation."""

    index: int
    """Prompt number times n plus number of the sample."""
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    """null until the last piece."""
    stop_reason: str | int | None | UnsetType = UNSET
    """The stop text or the stop token that ended it; null for the end-of-text token and for lengths."""
    token_ids: list[int] | UnsetType = UNSET
    """With return_token_ids."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    """With return_prompt_text."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """With prompt_logprobs."""


class CompletionChoice(CompletionChunkChoice, kw_only=True):
    """One whole continuation."""

    finish_reason: FinishReason
    stop_reason: str | int | None


class CompletionChunk(Struct, kw_only=True):
    """One event of a stream; the data of the last event is [DONE]."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    """One piece; none in the chunk with the usage."""
    usage: Usage | None | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """All continuations."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
