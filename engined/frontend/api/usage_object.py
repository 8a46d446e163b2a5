"""Parts that the answers of /v1/chat/completions and /v1/completions share, as /openapi.json describes them."""

from typing import Literal

from msgspec import Struct

FinishReason = Literal["stop", "length", "abort"]
"""stop: the model or a stop text ended it; length: max_tokens or the context; abort: a deadline or a shutdown."""


class PromptTokensDetails(Struct, kw_only=True):
    """More about the prompt."""

    cached_tokens: int
    """Tokens that were read from the prefix cache."""


class Usage(Struct, kw_only=True):
    """Tokens of one request. The prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptToken(Struct, kw_only=True):
    """The log-probability of one token at one place of the prompt."""

    logprob: float
    rank: int
    """Among the whole vocabulary; the most probable token has rank 1."""
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""One object for each token of the prompt, keyed by token id; null for the first, which nothing predicts."""
