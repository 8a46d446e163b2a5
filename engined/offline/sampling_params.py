"""The settings of a generation as a Python programmer gives them. Caller's process.

Not to be confused with `engined.protocol.sampling.SamplingParams`, the resolved form that the engine gets: this one is
the counterpart of the fields of an HTTP request, and takes the same way through the same checks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to generate; the names are vLLM's.

    None is silence: the model's generation_config decides, or else the default of the HTTP field of the same name.
    Values are checked when they are used, against the model.
    """

    n: int = 1
    """Answers for each prompt."""
    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    """0 or -1 is off."""
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    """Silence means 16 for `generate`, and for `chat` all the room that the context leaves."""
    min_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    """The same seed gives the same answer, whatever else runs; answer k of n uses seed + k."""
    logprobs: int | None = None
    """Alternatives to report for each generated token; the sampled one is always there."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    logit_bias: Mapping[int, float] | None = None
    """By token id, -100 to 100."""
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    structured_outputs: Mapping[str, Any] | None = None
    """One constraint that each answer matches, as over HTTP: {"json": schema}, {"regex": ...}, {"choice": [...]},
    {"grammar": ...}, {"json_object": True} or {"structural_tag": ...}."""
    thinking_token_budget: int | None = None
    """Most tokens of reasoning, for `chat` with a model that reasons; -1 is no bound."""
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    """Keep only the last tokens of a long prompt; -1 keeps as many as leave room for an answer."""

    def given(self) -> dict[str, Any]:
        """The fields that are not silent, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
