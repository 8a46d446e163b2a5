"""How one sequence is pooled: what a request asks of a model that answers with numbers instead of tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """Settings of one pooled sequence. A model has one head: an embedding, or (a cross-encoder) a score."""

    dimensions: int | None = None
    """Keep only so many leading values of an embedding, before it is normalized; None keeps all."""
    normalize: bool = True
    """Apply the model's own last step: an embedding is scaled to length 1 (if its author does that), the scores of a
    cross-encoder go through their activation."""
    token_type_ids: list[int] | None = None
    """Segment of each token, for encoders that read pairs; None is segment 0 throughout."""
