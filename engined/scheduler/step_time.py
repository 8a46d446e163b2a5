"""How long a step takes, learned from the steps so far. Pure: it is told sizes and times. Owned by the scheduler."""

from dataclasses import dataclass

_GAIN = 0.2
"""Share of an error that is corrected at once."""
_MAX_RATIO = 2.0
"""Of a measured time to the expected one. What took longer was held up by something else, and says little."""
_UNIT = 64.0
"""Requests or tokens that weigh as much as the fixed part of a step when an error is shared out."""
_CONTEXT_UNIT = 1024.0
_PRIOR_SECONDS = (0.01, 0.01, 0.02, 0.01)
"""Of one unit of each term, before the first step: a small model on a small machine."""


@dataclass(frozen=True, slots=True)
class StepSize:
    """What the time of a step depends on."""

    num_requests: int
    """In the step; each has one token at least."""
    num_more_tokens: int = 0
    """Beyond one for each request: nearly all of them of prompts."""
    num_pairs: int = 0
    """Of these tokens and the tokens before each, which attention compares."""


class StepTimeModel:
    """seconds = a + b * requests + c * more tokens + d * pairs, and none of the four is ever negative.

    Fitted by normalised least mean squares (Widrow and Hoff 1960; Nagumo and Noda 1967): each step moves the four by a
    share of its error, along its own terms. So what is expected near the steps that come is right, even where they are
    too much alike to tell the four apart, and one step, however long it took, can do little.
    """

    def __init__(self) -> None:
        self._seconds = _PRIOR_SECONDS

    def base_seconds(self, num_requests: int) -> float:
        """A step in which each request computes one token."""
        return _dot(self._seconds, _terms(StepSize(num_requests)))

    def seconds_per_token(self, context: int) -> float:
        """One token more in a step, of a sequence with so many tokens before it."""
        return max(_dot(self._seconds[2:], (1 / _UNIT, context / _UNIT / _CONTEXT_UNIT)), 1e-9)

    def observe(self, size: StepSize, seconds: float) -> None:
        """Learn from a step."""
        terms = _terms(size)
        expected = _dot(self._seconds, terms)
        error = min(seconds, max(expected, 1e-6) * _MAX_RATIO) - expected
        rate = _GAIN * error / _dot(terms, terms)
        a, b, c, d = (max(0.0, old + rate * term) for old, term in zip(self._seconds, terms, strict=True))
        self._seconds = (a, b, c, d)


def _terms(size: StepSize) -> tuple[float, float, float, float]:
    more = size.num_more_tokens / _UNIT
    return 1.0, size.num_requests / _UNIT, more, size.num_pairs / _UNIT / _CONTEXT_UNIT


def _dot(left: tuple[float, ...], right: tuple[float, ...]) -> float:
    return sum(one * other for one, other in zip(left, right, strict=True))
