"""Several servers in turn: A B, then B A, so that what drifts on the machine hits both alike. Used by `bench serve`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engined.bench.measures import Measure, measure
from engined.bench.run import RunOptions, find_model, run
from engined.bench.server import Server
from engined.bench.summary import Spread
from engined.bench.workload import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, as it goes into the results."""

    round: int
    point: str
    server: str
    measures: dict[Measure, float]
    num_requests: int
    errors: list[str]
    """Why answers are missing, one text for each."""
    seconds: float
    client_cpu: float
    """CPU seconds."""


def order(servers: Sequence[Server], round: int) -> list[Server]:
    """The servers as they stand in even rounds, backwards in odd ones."""
    return list(servers) if round % 2 == 0 else list(reversed(servers))


async def find_models(servers: Sequence[Server], timeout: float) -> list[Server]:
    """The servers, each with a model. Raises BenchError if one does not answer."""
    models = [await find_model(server, timeout) for server in servers]
    return [replace(server, model=server.model or model) for server, model in zip(servers, models, strict=True)]


async def run_rounds(
    servers: Sequence[Server],
    points: Sequence[Point],
    num_rounds: int,
    seed: int,
    options: RunOptions,
    report: Callable[[RunRecord], None],
) -> list[RunRecord]:
    """All rounds; in each, every point is measured on all servers before the next one. `report` is told each run.

    In a round all servers get the same prompts. Other rounds have others, which no prefix cache knows.
    """
    records: list[RunRecord] = []
    for round in range(num_rounds):
        for point in points:
            for server in order(servers, round):
                result = await run(server, point, f"{seed}/{round}/{point.label}", options)
                record = RunRecord(
                    round=round,
                    point=point.label,
                    server=server.name,
                    measures=measure(result),
                    num_requests=len(result.answers),
                    errors=result.errors,
                    seconds=result.seconds,
                    client_cpu=result.client_cpu,
                )
                report(record)
                records.append(record)
    return records


Measures = dict[Measure, Spread]
Summary = dict[str, dict[str, Measures]]
"""By point and server."""


def summarise(records: Sequence[RunRecord]) -> Summary:
    """The measures over all rounds."""
    values: dict[str, dict[str, dict[Measure, list[float]]]] = {}
    for record in records:
        of_server = values.setdefault(record.point, {}).setdefault(record.server, {})
        for name, value in record.measures.items():
            of_server.setdefault(name, []).append(value)
    return {
        point: {
            server: {name: Spread.of(numbers) for name, numbers in measures.items()}
            for server, measures in of_point.items()
        }
        for point, of_point in values.items()
    }


def ratios(records: Sequence[RunRecord], first: str) -> Summary:
    """The server `first` over each other one: the ratio of the two runs that stand side by side in a round."""
    by_run = {(record.round, record.point, record.server): record.measures for record in records}
    compared: list[RunRecord] = []
    for record in records:
        of_first = by_run[record.round, record.point, first]
        if record.server != first:
            quotients = {
                name: of_first[name] / value for name, value in record.measures.items() if name in of_first and value
            }
            compared.append(replace(record, measures=quotients))
    return summarise(compared)
