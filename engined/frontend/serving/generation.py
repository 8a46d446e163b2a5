"""One HTTP request that generates, whatever its endpoint: its engine requests, its usage, its log line."""

import functools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from engined.errors import EnginedError
from engined.frontend.access.caller import EVERYBODY, Caller
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.live_requests import LiveRequest, RequestInfo
from engined.frontend.off_loop import LARGE_BYTES, call_off_loop
from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.output.collector import RequestOutputCollector
from engined.frontend.output.request_state import OutputOptions
from engined.frontend.serving.outcome import Ending, describe_error, failed, log_outcome
from engined.frontend.serving.requests import scope_requests
from engined.frontend.serving.time_limits import TIMEOUT_STOP_REASON, Deadlines, TimeLimits
from engined.protocol.engine import EngineCoreRequest
from engined.trace.tracer import Track


class ResponseFormatter(Protocol):
    """The shape of an endpoint's response, whole or in chunks. One object a request; chunks come as SSE bytes."""

    @property
    def terminator(self) -> bytes:
        """The last bytes of every stream, after its end or after an error; empty where the API has none."""

    @property
    def keep_alive(self) -> bytes:
        """What a stream sends when it has had nothing to say for a while."""

    def begin(self) -> bytes:
        """What a stream says before the first output."""

    def chunk(self, output: ChoiceOutput, usage: "Usage") -> bytes:
        """One delta; empty if it has nothing to say."""

    def end(self, usage: "Usage") -> bytes:
        """What follows the last delta, up to the terminator."""

    def error(self, error: EnginedError) -> bytes:
        """The event of a generation that fails once its stream has begun; the terminator follows, and nothing else."""

    def whole(self, outputs: Sequence[ChoiceOutput], usage: "Usage") -> dict[str, Any]:
        """The response of a request that is not streamed; `outputs[i]` is choice i."""


@dataclass(slots=True, kw_only=True)
class Usage:
    """Tokens of one HTTP request. The prompt counts once, however many choices it has."""

    num_prompt_tokens: int
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0
    """Of the completion tokens, those of reasoning; counted when a choice ends."""

    def add(self, output: ChoiceOutput, choices_per_prompt: int) -> None:
        """Count one delta; cached tokens count for the first choice of each prompt."""
        self.num_completion_tokens += len(output.token_ids)
        if output.index % choices_per_prompt == 0:
            self.num_cached_tokens += output.num_cached_tokens

    @property
    def num_tokens(self) -> int:
        """Prompt and completion together."""
        return self.num_prompt_tokens + self.num_completion_tokens

    def as_dict(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """All that is needed to run one HTTP request and to answer it."""

    response_id: str
    label: str
    """The request id that the client sees in `x-request-id`."""
    requests: list[EngineCoreRequest]
    choices_per_prompt: int
    options: OutputOptions
    formatter: ResponseFormatter
    usage: Usage
    arrival_time: float
    time_limits: TimeLimits = field(default_factory=TimeLimits)
    endpoint: str = ""
    """The route that was called; empty if there was none."""
    caller: Caller = EVERYBODY


def attribute(generation: Generation, endpoint: str, caller: Caller) -> Generation:
    """The same generation, with the route and the caller that it came from; see `scope_requests`."""
    requests = scope_requests(generation.requests, caller)
    return replace(generation, requests=requests, endpoint=endpoint, caller=caller)


class GenerationRun:
    """A generation that is under way: a source of outputs that keeps the books."""

    def __init__(self, generation: Generation, collector: RequestOutputCollector, track: Track) -> None:
        self.collector = collector
        self.track = track
        """Its row in the trace."""
        self._generation = generation
        self._finish_reasons: dict[int, str] = {}
        self._error: Exception | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended and everything was taken."""
        return self.collector.is_finished

    @property
    def ending(self) -> Ending:
        """How it ended, for the log: for example with "stop", or "length,stop" for two choices."""
        if self._error is not None:
            return Ending(status=200, reason="error", error=describe_error(self._error))
        return Ending(status=200, reason=",".join(sorted(set(self._finish_reasons.values()))))

    def note_error(self, error: Exception) -> None:
        """The generation failed after its answer had begun."""
        self._error = error

    async def next_outputs(self) -> list[ChoiceOutput]:
        """Wait for outputs; empty after a nudge. Raises RequestError if the generation failed."""
        outputs = await self.collector.get()
        for output in outputs:
            self._generation.usage.add(output, self._generation.choices_per_prompt)
            if output.finish_reason is not None:
                self._finish_reasons[output.index] = output.finish_reason
        return outputs


@asynccontextmanager
async def run_generation(engine: AsyncLLM, generation: Generation, *, final_only: bool) -> AsyncIterator[GenerationRun]:
    """Run `generation` while the block lasts, and log one line about it, however it ends."""
    info = _describe(generation, is_stream=not final_only)
    live: LiveRequest | None = None
    try:
        with engine.tracer.lane("request") as track:
            async with engine.generate(generation.requests, generation.options, info) as collector:
                live = engine.live_requests.get(info.response_id)
                run = GenerationRun(generation, collector, track)
                cut = functools.partial(engine.end_requests, generation.requests, TIMEOUT_STOP_REASON)
                deadlines = Deadlines(generation.time_limits, generation.arrival_time, collector, cut)
                try:
                    yield run
                finally:
                    deadlines.cancel()
        ending = run.ending
    except BaseException as error:
        ending = failed(error, generation.endpoint)
        raise
    finally:
        log_outcome(info, ending, live, generation.usage.num_reasoning_tokens)


def _describe(generation: Generation, *, is_stream: bool) -> RequestInfo:
    return RequestInfo(
        response_id=generation.response_id,
        label=generation.label,
        endpoint=generation.endpoint,
        caller=generation.caller,
        is_stream=is_stream,
        num_prompt_tokens=generation.usage.num_prompt_tokens,
        choices_per_prompt=generation.choices_per_prompt,
        arrival_time=generation.arrival_time,
    )


async def collect_whole(engine: AsyncLLM, generation: Generation) -> dict[str, Any]:
    """Run to the end: the response object. Raises RequestError if the generation failed."""
    async with run_generation(engine, generation, final_only=True) as run:
        outputs: list[ChoiceOutput] = []
        while not run.is_finished:
            outputs += await run.next_outputs()
        outputs.sort(key=lambda output: output.index)
        # Within the run, whose line of the log tells of the reasoning that is found here, and of a failure.
        return await call_off_loop(generation.formatter.whole, outputs, generation.usage, is_large=are_large(outputs))


def are_large(outputs: Sequence[ChoiceOutput]) -> bool:
    """Whether bringing `outputs` into their shape would hold up the event loop."""
    return sum(output.num_bytes for output in outputs) > LARGE_BYTES
