"""What presses on this frontend, apart from its engine, in numbers for /metrics. Frontend process; built by `app`."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engined.frontend.admission.gate import Gate
from engined.frontend.connection_limits import ConnectionLimits
from engined.frontend.loop_lag import LoopLag


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """The parts that know."""

    gate: Gate
    connections: ConnectionLimits
    loop_lag: LoopLag


class PressureCollector(Collector):
    """`Pressure` as metrics; they belong to the process, and carry no label."""

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure

    def collect(self) -> Iterator[Metric]:
        """All families, as of now."""
        gate, connections = self._pressure.gate, self._pressure.connections
        yield _gauge("queued_requests", "HTTP requests that have not begun in the engine.", gate.num_waiting)
        yield _gauge("queued_tokens", "Tokens that those of them count with.", gate.num_waiting_tokens)
        yield _counter("queue_refusals", "HTTP requests refused because the queue was full.", gate.num_refused)
        yield _counter("rate_limit_refusals", "HTTP requests refused by a limit of their key.", gate.num_limited)
        yield _gauge("http_connections", "Open connections.", connections.num_open)
        yield _counter("http_connection_refusals", "Connections closed for want of room.", connections.num_refused)
        yield _gauge(
            "event_loop_lag_seconds",
            "Most that the event loop was late, in half a minute.",
            self._pressure.loop_lag.longest,
        )


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"engined:{name}", help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"engined:{name}", help_text, value=value)
