"""The numbers that vLLM does not have: of the daemon, of this process and of HTTP. Frontend process; built by `app`."""

import typing
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engined import __version__
from engined.frontend.lifecycle import Lifecycle
from engined.frontend.metrics import Metrics
from engined.process.board import DaemonPhase

PHASES: tuple[DaemonPhase, ...] = typing.get_args(DaemonPhase)


class DaemonCollector(Collector):
    """Families without the name of a model, each with the same labels always."""

    def __init__(self, metrics: Metrics, lifecycle: Lifecycle) -> None:
        self._metrics = metrics
        self._lifecycle = lifecycle

    def collect(self) -> Iterator[Metric]:
        """All families, as of now."""
        state = self._lifecycle.state
        yield _gauge("build_info", "Always 1; the version is in the label.", {"version": __version__}, 1)
        yield _gauge("ready", "1 while requests are served.", {}, self._lifecycle.unready_reason is None)
        yield self._phase()
        yield _counter("restarts", "Processes that were started again.", state.num_restarts)
        yield _counter("reloads", "Times that keys and limits were read again.", state.num_reloads)
        yield _counter(
            "num_forced_tokens",
            "Tokens that grammars forced, without a forward each.",
            self._metrics.stats.num_forced_tokens,
        )
        yield _gauge(
            "max_step_tokens",
            "Tokens that the last step could hold: fewer where prompts come in beside running streams.",
            {},
            self._metrics.stats.max_step_tokens,
        )
        yield _counter(
            "log_lines_dropped",
            "Lines of the log that could not be written, of all processes.",
            state.num_log_lines_dropped,
        )
        yield self._http_requests()

    def _phase(self) -> Metric:
        family = GaugeMetricFamily("engined:phase", "1 for what the daemon does now.", labels=["phase"])
        for phase in PHASES:
            family.add_metric([phase], self._lifecycle.state.phase == phase)
        return family

    def _http_requests(self) -> Metric:
        family = CounterMetricFamily("engined:http_requests", "By route and status.", labels=["endpoint", "status"])
        for (endpoint, status), count in self._metrics.num_http_requests.items():
            family.add_metric([endpoint, str(status)], count)
        return family


def _gauge(name: str, help_text: str, labels: dict[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(f"engined:{name}", help_text, labels=list(labels))
    family.add_metric([*labels.values()], value)
    return family


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"engined:{name}", help_text, value=value)
