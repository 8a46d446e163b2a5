"""The requests of one run, drawn from a seed, so that every server of a round gets the same. Pure; used by `run`."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from engined.bench.workload import ClosedLoop, Conversations, Disturbed, Length, OpenLoop, Workload

FIRST_TOKEN_ID = 100
"""Below it many vocabularies have special tokens."""
_MIN_REQUESTS = 4
_SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}
"""Long enough that `max_tokens` ends the answer, so that every server generates as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request: its prompt, or its words where it is a chat."""

    prompt: list[int]
    output: int
    words: str | None = None
    has_schema: bool = False

    def route(self) -> str:
        """Where it goes."""
        return "/v1/completions" if self.words is None else "/v1/chat/completions"

    def body(self, model: str, *, wants_token_ids: bool = False) -> bytes:
        """Greedy, of exactly `output` tokens, streamed, with usage."""
        fields: dict[str, Any] = {
            "model": model,
            "max_tokens": self.output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.words is None:
            fields["prompt"] = self.prompt
        else:
            fields["messages"] = [{"role": "user", "content": self.words}]
        if self.has_schema:
            fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "list", "schema": _SCHEMA}}
        if wants_token_ids:
            fields["return_token_ids"] = True
        return orjson.dumps(fields)


class Draw:
    """Draws token ids and lengths; the same seed draws the same."""

    def __init__(self, seed: str, vocab_size: int) -> None:
        self.random = random.Random(seed)
        self._ids = range(FIRST_TOKEN_ID, vocab_size)

    def token_ids(self, count: int) -> list[int]:
        """So many, at random."""
        return self.random.choices(self._ids, k=count)

    def length(self, length: Length) -> int:
        """One length, at least 1 where it is drawn."""
        if isinstance(length, int):
            return length
        drawn = self.random.lognormvariate(math.log(length.median), length.sigma)
        return min(max(1, round(drawn)), length.maximum)


def plan_requests(workload: ClosedLoop | OpenLoop, num_requests: int, draw: Draw) -> list[PlannedRequest]:
    """Independent requests on a shared prefix."""
    prefix = draw.token_ids(workload.prefix)
    if isinstance(workload, ClosedLoop) and workload.has_schema:
        return [_plan_chat(draw, draw.length(workload.output)) for _ in range(num_requests)]
    return [
        PlannedRequest(prompt=prefix + draw.token_ids(draw.length(workload.input)), output=draw.length(workload.output))
        for _ in range(num_requests)
    ]


def num_requests(workload: ClosedLoop, num_clients: int) -> int:
    """Of one run."""
    return workload.num_requests or max(2 * num_clients, _MIN_REQUESTS)


def plan_arrivals(workload: OpenLoop, rate: float, draw: Draw) -> list[float]:
    """Seconds after the begin at which each request is sent; the first at once."""
    if workload.burst > 1:
        return [index // workload.burst * workload.burst / rate for index in range(workload.num_requests)]
    times = [0.0]
    while len(times) < workload.num_requests:
        times.append(times[-1] + draw.random.expovariate(rate))
    return times


def plan_warm_up(workload: Workload, draw: Draw, max_output: int) -> PlannedRequest:
    """A request like those that come, with a shorter answer."""
    if isinstance(workload, ClosedLoop | OpenLoop):
        [request] = plan_requests(workload, 1, draw)
        return replace(request, output=min(request.output, max_output))
    return PlannedRequest(prompt=draw.token_ids(workload.input), output=min(workload.output, max_output))


def plan_turns(workload: Conversations, num_clients: int, draw: Draw) -> tuple[list[int], Sequence[list[list[int]]]]:
    """The shared prefix, and for each conversation the new tokens of each turn."""
    prefix = draw.token_ids(workload.prefix)
    return prefix, [[draw.token_ids(workload.input) for _ in range(workload.num_turns)] for _ in range(num_clients)]


def plan_streams(workload: Disturbed, num_clients: int, draw: Draw) -> list[PlannedRequest]:
    """The measured streams of a disturbed workload."""
    return [PlannedRequest(prompt=draw.token_ids(workload.input), output=workload.output) for _ in range(num_clients)]


def _plan_chat(draw: Draw, output: int) -> PlannedRequest:
    words = f"Write a long list of whole numbers, from {draw.random.randrange(10**6)} on."
    return PlannedRequest(prompt=[], output=output, words=words, has_schema=True)
