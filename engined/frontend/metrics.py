"""Counters of one frontend, and their Prometheus form. Frontend process.

Observing is adding to plain numbers: cheap per token, and nothing in it can raise into the loop. The Prometheus text is
built when somebody asks for it. Every duration is measured from the request's `arrival_time`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engined.protocol.engine import FinishReason, SchedulerStats

FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
LENGTH_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""1, 2, 5, 10 ... 500 000 tokens."""

EMPTY_STATS = SchedulerStats(
    num_running=0,
    num_waiting=0,
    kv_cache_usage=0.0,
    num_preemptions=0,
    prefix_cache_queries=0,
    prefix_cache_hits=0,
)


class Histogram:
    """Counts of observations by bucket; `upper_bounds` without infinity."""

    __slots__ = ("_upper_bounds", "_counts", "_sum")

    def __init__(self, upper_bounds: Sequence[float]) -> None:
        self._upper_bounds = upper_bounds
        self._counts = [0] * (len(upper_bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, as if it had been seen `times` times."""
        self._counts[bisect_left(self._upper_bounds, value)] += times
        self._sum += value * times

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound as text, observations up to it) for each bucket, and the sum of all values."""
        total, buckets = 0, []
        for bound, count in zip([*map(str, self._upper_bounds), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets, self._sum


def _finish_counts() -> dict[str, int]:
    return {reason.value: 0 for reason in FinishReason}


@dataclass(slots=True)
class Metrics:
    """The numbers of one frontend. Each sequence is counted once when it ends, with its reason."""

    stats: SchedulerStats = EMPTY_STATS
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_cached_tokens: int = 0
    num_finished: dict[str, int] = field(default_factory=_finish_counts)
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BUCKETS))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(TOKEN_BUCKETS))
    e2e_request_latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    request_queue_time: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    request_prefill_time: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    request_decode_time: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    request_inference_time: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    request_time_per_output_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_BUCKETS))
    request_prompt_tokens: Histogram = field(default_factory=lambda: Histogram(LENGTH_BUCKETS))
    request_generation_tokens: Histogram = field(default_factory=lambda: Histogram(LENGTH_BUCKETS))
    request_max_num_generation_tokens: Histogram = field(default_factory=lambda: Histogram(LENGTH_BUCKETS))
    num_http_requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route and status."""

    def update_scheduler_stats(self, stats: SchedulerStats) -> None:
        """Take over the newest state of the scheduler."""
        self.stats = stats

    def observe_started(self, queue_seconds: float, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """A sequence runs for the first time."""
        self.request_queue_time.observe(queue_seconds)
        self.num_prompt_tokens += num_prompt_tokens
        self.num_cached_tokens += num_cached_tokens

    def observe_finished(
        self, finish_reason: str, e2e_seconds: float, num_prompt_tokens: int, num_generation_tokens: int
    ) -> None:
        """A sequence ended, in whatever way."""
        self.num_finished[finish_reason] = self.num_finished.get(finish_reason, 0) + 1
        self.e2e_request_latency.observe(e2e_seconds)
        self.request_prompt_tokens.observe(num_prompt_tokens)
        self.request_generation_tokens.observe(num_generation_tokens)

    def observe_generated(self, prefill_seconds: float, decode_seconds: float, num_tokens: int) -> None:
        """A sequence that gave at least one token ended: how long it took to the first, and from there to the last."""
        self.request_prefill_time.observe(prefill_seconds)
        self.request_decode_time.observe(decode_seconds)
        self.request_inference_time.observe(prefill_seconds + decode_seconds)
        if num_tokens > 1:
            self.request_time_per_output_token.observe(decode_seconds / (num_tokens - 1))

    def observe_request(self, longest_generation: int) -> None:
        """A request ended, all of its sequences with it; `longest_generation` are the tokens of the longest one."""
        self.request_max_num_generation_tokens.observe(longest_generation)

    def count_http_request(self, endpoint: str, status: int) -> None:
        """A request was answered, or its client went away. `endpoint` is a route as it was registered."""
        self.num_http_requests[endpoint, status] += 1


class MetricsCollector(Collector):
    """What vLLM counts too, under its names: behind "engined:", or once more behind "vllm:" for its dashboards."""

    def __init__(self, metrics: Metrics, labels: Mapping[str, str], prefix: str = "engined") -> None:
        self._metrics = metrics
        self._labels = labels
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        """All families, built from the numbers as they are now."""
        metrics, stats = self._metrics, self._metrics.stats
        yield self._gauge("num_requests_running", "Sequences in the running batch.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Sequences that wait for room.", stats.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", stats.kv_cache_usage)
        yield self._counter("num_preemptions", "Sequences set back to free blocks.", stats.num_preemptions)
        yield self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries
        )
        yield self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_cache_hits)
        yield self._counter("prompt_tokens", "Prompt tokens of started sequences.", metrics.num_prompt_tokens)
        yield self._counter("prompt_tokens_cached", "Those from the prefix cache.", metrics.num_cached_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", metrics.num_generation_tokens)
        yield self._finished()
        for name, help_text, histogram in (
            ("time_to_first_token_seconds", "Arrival to first token.", metrics.time_to_first_token),
            ("inter_token_latency_seconds", "Between two tokens.", metrics.inter_token_latency),
            ("e2e_request_latency_seconds", "Arrival to end.", metrics.e2e_request_latency),
            ("request_queue_time_seconds", "Arrival to first schedule.", metrics.request_queue_time),
            ("request_prefill_time_seconds", "First schedule to first token.", metrics.request_prefill_time),
            ("request_decode_time_seconds", "First token to last token.", metrics.request_decode_time),
            ("request_inference_time_seconds", "First schedule to last token.", metrics.request_inference_time),
            (
                "request_time_per_output_token_seconds",
                "Mean of a sequence between two tokens.",
                metrics.request_time_per_output_token,
            ),
            ("request_prompt_tokens", "Prompt tokens of a sequence.", metrics.request_prompt_tokens),
            ("request_generation_tokens", "Tokens generated.", metrics.request_generation_tokens),
            (
                "request_max_num_generation_tokens",
                "Tokens of the longest sequence of a request.",
                metrics.request_max_num_generation_tokens,
            ),
        ):
            yield self._histogram(name, help_text, histogram)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{self._prefix}:{name}", help_text, labels=list(self._labels))
        family.add_metric([*self._labels.values()], value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"{self._prefix}:{name}", help_text, labels=list(self._labels))
        family.add_metric([*self._labels.values()], value)
        return family

    def _finished(self) -> Metric:
        labels = [*self._labels, "finished_reason"]
        family = CounterMetricFamily(f"{self._prefix}:request_success", "Sequences ended, by reason.", labels=labels)
        for reason, count in self._metrics.num_finished.items():
            family.add_metric([*self._labels.values(), reason], count)
        return family

    def _histogram(self, name: str, help_text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(f"{self._prefix}:{name}", help_text, labels=list(self._labels))
        buckets, total = histogram.cumulative()
        family.add_metric([*self._labels.values()], buckets, total)
        return family


class MetricsPage:
    """The text of GET /metrics."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, *collectors: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """The page, as of now."""
        return generate_latest(self._registry)
