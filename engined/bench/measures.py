"""What one run says: the measures of its answers. Pure; used by `rounds` and by reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engined.bench.answer import Answer
from engined.bench.summary import quantile


class Measure(StrEnum):
    """Times in seconds, rates per second. TTFT is to the first token, TPOT per output token after it, ITL between two
    events of a stream."""

    TTFT_P50 = "ttft_p50"
    TTFT_P99 = "ttft_p99"
    TPOT_P50 = "tpot_p50"
    ITL_P50 = "itl_p50"
    ITL_P99 = "itl_p99"
    TOKENS_PER_SECOND = "tokens_per_second"
    REQUESTS_PER_SECOND = "requests_per_second"
    DISTURBANCE_TTFT_P50 = "disturbance_ttft_p50"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The answers of one run of one server."""

    answers: list[Answer]
    """The measured ones, failed ones among them."""
    disturbing: list[Answer]
    seconds: float
    client_cpu: float
    """CPU seconds of the client, to see that it did not get in the way."""

    @property
    def errors(self) -> list[str]:
        """Why answers are missing, one text for each."""
        return [answer.error for answer in (*self.answers, *self.disturbing) if answer.error is not None]


def measure(result: RunResult) -> dict[Measure, float]:
    """The measures of the answers that are whole; those that they do not have are absent."""
    good = [answer for answer in result.answers if answer.error is None]
    gaps = [gap for answer in good for gap in answer.gaps]
    per_token = [
        (answer.ended - answer.token_times[0]) / (answer.num_tokens - 1) for answer in good if answer.num_tokens > 1
    ]
    disturbing = [answer.ttft for answer in result.disturbing if answer.error is None]
    measures: dict[Measure, float] = {}
    _add_quantiles(measures, [answer.ttft for answer in good], {Measure.TTFT_P50: 0.5, Measure.TTFT_P99: 0.99})
    _add_quantiles(measures, per_token, {Measure.TPOT_P50: 0.5})
    _add_quantiles(measures, gaps, {Measure.ITL_P50: 0.5, Measure.ITL_P99: 0.99})
    _add_quantiles(measures, disturbing, {Measure.DISTURBANCE_TTFT_P50: 0.5})
    if good:
        measures[Measure.TOKENS_PER_SECOND] = sum(answer.num_tokens for answer in good) / result.seconds
        measures[Measure.REQUESTS_PER_SECOND] = len(good) / result.seconds
    return measures


def _add_quantiles(measures: dict[Measure, float], values: Sequence[float], wanted: dict[Measure, float]) -> None:
    if values:
        measures |= {name: quantile(values, share) for name, share in wanted.items()}
