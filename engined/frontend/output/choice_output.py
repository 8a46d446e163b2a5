"""What one sequence has to say since its consumer last looked. Frontend process."""

from dataclasses import dataclass, field

from engined.protocol.engine import TokenLogprobs

BYTES_PER_CHARACTER = 4
BYTES_PER_LOGPROB = 128
"""Of one alternative as JSON: its text, its bytes one by one, its number."""


@dataclass(slots=True, kw_only=True)
class ChoiceOutput:
    """A delta of one choice. Deltas merge: text and lists are appended, the ending is taken over.

    `text_offsets[i]` is where the text of token i begins in the generated text, in characters; it and `logprobs` have
    one entry for each token, or none at all if logprobs were not asked for.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text_offsets: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    """Set in the first output, 0 afterwards."""
    pooled: list[float] | None = None
    """The result of a pooled sequence, which has neither text nor tokens."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def num_bytes(self) -> int:
        """About how large it is once written, rather too much than too little."""
        size = BYTES_PER_CHARACTER * len(self.text)
        for logprobs in (self.logprobs, self.prompt_logprobs):
            size += BYTES_PER_LOGPROB * sum(len(position.token_ids) for position in logprobs)
        return size

    def merge(self, newer: "ChoiceOutput") -> None:
        """Append `newer`, which must be the next delta of the same choice."""
        assert self.finish_reason is None and newer.index == self.index
        self.text += newer.text
        self.token_ids += newer.token_ids
        self.logprobs += newer.logprobs
        self.text_offsets += newer.text_offsets
        self.prompt_logprobs += newer.prompt_logprobs
        self.num_cached_tokens += newer.num_cached_tokens
        self.pooled = newer.pooled
        self.finish_reason = newer.finish_reason
        self.stop_reason = newer.stop_reason
