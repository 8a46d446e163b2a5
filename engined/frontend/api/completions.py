"""Body of POST /v1/completions."""

from engined.frontend.api.fields import GenerationFields


class CompletionRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """The whole body."""

    prompt: str | list[int | str | list[int]]
    """One text, several, one list of token ids, or several; not mixed."""
    logprobs: int | None = None
