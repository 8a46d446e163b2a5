"""What is asked of a server: the kinds of load, and those that have a name. Pure data; `plan` makes requests of it."""

from dataclasses import dataclass, fields, replace
from typing import Any

from engined.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Lengths in tokens as people's conversations have them: many short, few long."""

    median: float
    sigma: float
    """Of the logarithm."""
    maximum: int


Length = int | LogNormal
"""In tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Clients that send their next request as soon as they have their answer."""

    concurrency: tuple[int, ...]
    """Number of clients; each is a point of its own."""
    num_requests: int | None = None
    """None: twice as many as clients, and at least four."""
    prefix: int = 0
    """Tokens that all prompts of a run begin with, before `input` tokens of their own."""
    input: Length
    inputs: tuple[int, ...] = ()
    """In place of `input`: each is a point of its own."""
    output: Length
    has_schema: bool = False
    """The answer is JSON of a schema. Such prompts are words, in a chat, and `prefix` and `input` do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Arrivals that do not wait for answers: a Poisson process."""

    rate: tuple[float, ...]
    """Requests per second; each is a point of its own."""
    num_requests: int
    prefix: int = 0
    input: Length
    output: Length
    burst: int = 1
    """Requests that arrive together; with more than one, bursts come at equal distances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Each client talks for some turns; a turn's prompt is all that was said, and new tokens."""

    concurrency: tuple[int, ...]
    num_turns: int
    prefix: int
    input: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Requests that come at equal distances while others are measured, until those have ended."""

    interval: float
    """Seconds."""
    input: int
    output: int
    is_cancelled: bool = False
    """The client hangs up at its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """Streams that begin together, and a disturbance; the streams are measured."""

    concurrency: tuple[int, ...]
    input: int
    output: int
    disturbance: Disturbance


Workload = ClosedLoop | OpenLoop | Conversations | Disturbed

WORKLOADS: dict[str, Workload] = {
    "w1": ClosedLoop(concurrency=(1, 8, 32, 64), input=128, output=128),
    "w2": ClosedLoop(concurrency=(1, 8), input=1024, output=16),
    "w3": ClosedLoop(concurrency=(1, 8), input=32, output=512),
    "w4": OpenLoop(
        rate=(2.0,),
        num_requests=60,
        input=LogNormal(median=100, sigma=1.1, maximum=1024),
        output=LogNormal(median=150, sigma=0.9, maximum=512),
    ),
    "w5": Conversations(concurrency=(8,), num_turns=6, prefix=600, input=64, output=64),
    "w6": ClosedLoop(concurrency=(1, 8), input=0, output=128, has_schema=True),
    "w7": OpenLoop(rate=(4.0,), num_requests=64, burst=16, input=128, output=64),
    "w8": Disturbed(
        concurrency=(8,), input=128, output=512, disturbance=Disturbance(interval=2.0, input=2000, output=1)
    ),
    "w9": Disturbed(
        concurrency=(8,),
        input=128,
        output=512,
        disturbance=Disturbance(interval=0.1, input=128, output=128, is_cancelled=True),
    ),
}
"""W1 short chat, W2 long prompts, W3 long answers, W4 lengths like ShareGPT's, W5 conversations, W6 JSON of a schema,
W7 bursts, W8 eight streams and a prompt of 2,000 tokens every two seconds, W9 the same and a storm of cancellations."""


def override(workload: Workload, given: dict[str, Any]) -> Workload:
    """The workload with other values for some of its fields.

    Raises ConfigError for a field that this kind of workload does not have: nothing is ignored.
    """
    known = {field.name for field in fields(workload)}
    for name in given:
        if name not in known:
            kind = type(workload).__name__
            raise ConfigError(f"--{name.replace('_', '-')} means nothing to this workload, a {kind}: leave it out")
    return replace(workload, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One level of a workload: what is measured in one run."""

    label: str
    """For example "c=8" or "2/s"."""
    workload: Workload
    level: float
    """Clients, or requests per second."""
    input: int | None = None
    """Prompt tokens, where the points differ in them."""


def points(workload: Workload) -> list[Point]:
    """All levels of a workload, in order."""
    if isinstance(workload, OpenLoop):
        return [Point(label=f"{rate:g}/s", workload=workload, level=rate) for rate in workload.rate]
    if isinstance(workload, ClosedLoop) and workload.inputs:
        return [
            Point(
                label=f"c={count} in={length}",
                workload=replace(workload, input=length, inputs=()),
                level=count,
                input=length,
            )
            for count in workload.concurrency
            for length in workload.inputs
        ]
    return [Point(label=f"c={count}", workload=workload, level=count) for count in workload.concurrency]
