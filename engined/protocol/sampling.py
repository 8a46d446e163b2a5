"""How one sequence is generated: the part of a request that the engine honours.

The frontend fills every field (request, then the model's generation defaults, then ours), so the engine has no
defaults to apply. What needs text (stop strings, special tokens) stays in the frontend; see `engined.frontend.output`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Resolved generation settings of one sequence; `n` choices are n sequences.

    The sampler works in this order, on fp32 logits: allowed ids, bad words, min_tokens mask, logit bias, repetition,
    frequency and presence penalty; greedy rows take the argmax here; then temperature, min_p, top_k, top_p, draw.
    """

    max_tokens: int
    """Most tokens to generate, already cut to what context and KV cache hold; 0 only scores the prompt."""
    min_tokens: int = 0
    """Until so many tokens exist, EOS and stop ids are masked."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output, as in the transformers library."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences whose last token is masked when the others have just been generated."""
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Disables `eos_token_ids` only, never `stop_token_ids`."""
    seed: int = 0
    """Key of the counter-based random stream; with the position it decides every draw, whatever the batch."""
    logprobs: int | None = None
    """Alternatives to report for each generated token; the sampled one is always among them."""
    prompt_logprobs: int | None = None
    """The same for prompt tokens. Such a request reads no prefix cache."""

    @property
    def is_plain(self) -> bool:
        """Whether logits, temperature and seed alone decide the token, and nothing but the token is wanted."""
        keeps_logits = not self.logit_bias and self.allowed_token_ids is None and not self.bad_words_ids
        return keeps_logits and self.min_tokens == 0 and self.logprobs is None and not (self.has_penalty or self.cuts)

    @property
    def has_penalty(self) -> bool:
        """Whether any of the three penalties does something."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    @property
    def cuts(self) -> bool:
        """Whether min_p, top_k or top_p may rule tokens out of a draw."""
        return self.temperature > 0 and (self.min_p > 0 or self.top_k > 0 or self.top_p < 1.0)

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """Ids that end the sequence."""
        eos = () if self.ignore_eos else self.eos_token_ids
        return frozenset((*eos, *self.stop_token_ids))
