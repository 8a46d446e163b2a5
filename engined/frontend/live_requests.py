"""The HTTP requests that are under way: what an operator sees of them. Frontend process; owned by `AsyncLLM`.

Ids, names and numbers only: neither prompts nor outputs are kept here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from engined.frontend.access.caller import EVERYBODY, Caller
from engined.frontend.output.collector import RequestOutputCollector
from engined.frontend.output.request_state import RequestState

State = Literal["waiting", "running", "preempted", "sending"]
"""waiting: no sequence has run yet. preempted: what ran waits again. sending: all is generated, the client is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """One HTTP request, as it came."""

    response_id: str
    """Made by the server, and the only name by which it can be ended."""
    label: str
    """The request id that the client sees in `x-request-id`."""
    endpoint: str = ""
    """The route that was called; empty if there was none."""
    caller: Caller = EVERYBODY
    is_stream: bool = False
    num_prompt_tokens: int
    """Each prompt counts once, however many choices it has."""
    choices_per_prompt: int = 1
    arrival_time: float
    """Seconds of CLOCK_MONOTONIC."""


class LiveRequest:
    """One HTTP request and its sequences, those that have ended included."""

    def __init__(self, info: RequestInfo, collector: RequestOutputCollector, *, is_background: bool) -> None:
        self.info = info
        self.collector = collector
        self.is_background = is_background
        self.sequences: list[RequestState] = []

    @property
    def num_generated_tokens(self) -> int:
        """Of all choices."""
        return sum(sequence.num_generated_tokens for sequence in self.sequences)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens from the prefix cache; those of the first choice of each prompt count."""
        return sum(sequence.num_cached_tokens for sequence in self.sequences[:: self.info.choices_per_prompt])

    def stand(self, positions: Mapping[str, int]) -> tuple[State, int | None]:
        """Where it stands, and its place in the queue if it waits there; `positions` are those of all sequences."""
        unfinished = [sequence for sequence in self.sequences if sequence.finish_reason is None]
        if not unfinished:
            return "sending", None
        started = [sequence for sequence in unfinished if sequence.times.scheduled is not None]
        if any(sequence.request_id not in positions for sequence in started):
            return "running", None
        places = [positions[sequence.request_id] for sequence in unfinished if sequence.request_id in positions]
        return ("preempted" if started else "waiting"), min(places, default=None)


class LiveRequests:
    """All of one frontend, the oldest first."""

    def __init__(self) -> None:
        self._requests: dict[str, LiveRequest] = {}
        self.num_ended = 0
        """Requests that were here and are gone."""

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(list(self._requests.values()))

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, response_id: str) -> LiveRequest | None:
        """The request of exactly this id."""
        return self._requests.get(response_id)

    def add(self, request: LiveRequest) -> None:
        """A request begins."""
        assert request.info.response_id not in self._requests
        self._requests[request.info.response_id] = request

    def remove(self, request: LiveRequest) -> None:
        """A request is over: its answer is sent, or its client is gone."""
        del self._requests[request.info.response_id]
        self.num_ended += 1
