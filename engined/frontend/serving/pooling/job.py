"""One HTTP request that is pooled, whatever its route: its sequences, its answer, its log line. Frontend process."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from engined.frontend.access.caller import EVERYBODY, Caller
from engined.frontend.api.pooling import PoolingFields
from engined.frontend.async_llm import AsyncLLM, take_pooled
from engined.frontend.live_requests import LiveRequest, RequestInfo
from engined.frontend.output.request_state import OutputOptions
from engined.frontend.rendering.pooling_input import PoolingInput
from engined.frontend.serving.outcome import Ending, failed, log_outcome
from engined.frontend.serving.requests import scope_requests
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.pooling import PoolingParams
from engined.protocol.sampling import SamplingParams

Vector = list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingJob:
    """All that is needed to run one HTTP request and to answer it."""

    response_id: str
    label: str
    """The request id that the client sees in `x-request-id`."""
    requests: list[EngineCoreRequest]
    respond: Callable[[Sequence[Vector]], Struct]
    """From the result of each sequence, in their order, to the body of the answer."""
    arrival_time: float
    endpoint: str = ""
    """The route that was called; empty if there was none."""
    caller: Caller = EVERYBODY

    @property
    def num_prompt_tokens(self) -> int:
        """Of all sequences."""
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def info(self) -> RequestInfo:
        """The request, as it came."""
        return RequestInfo(
            response_id=self.response_id,
            label=self.label,
            endpoint=self.endpoint,
            caller=self.caller,
            num_prompt_tokens=self.num_prompt_tokens,
            arrival_time=self.arrival_time,
        )


def attribute(job: PoolingJob, endpoint: str, caller: Caller) -> PoolingJob:
    """The same job, with the route and the caller that it came from; see `scope_requests`."""
    return replace(job, requests=scope_requests(job.requests, caller), endpoint=endpoint, caller=caller)


def new_response_id(prefix: str) -> str:
    """For example "embd-" and 32 random hex digits."""
    return f"{prefix}-{uuid.uuid4().hex}"


def build_requests(
    response_id: str, inputs: Sequence[PoolingInput], pooling: PoolingParams, fields: PoolingFields, arrival_time: float
) -> list[EngineCoreRequest]:
    """One sequence for each input, all pooled alike."""
    return [
        EngineCoreRequest(
            request_id=f"{response_id}-{index}",
            prompt_token_ids=item.token_ids,
            sampling=SamplingParams(max_tokens=0),
            pooling=PoolingParams(
                dimensions=pooling.dimensions, normalize=pooling.normalize, token_type_ids=item.token_type_ids
            ),
            arrival_time=arrival_time,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
        )
        for index, item in enumerate(inputs)
    ]


def count_tokens(inputs: Sequence[PoolingInput]) -> int:
    """Tokens of all inputs, special ones included."""
    return sum(len(item.token_ids) for item in inputs)


async def run_pooling(engine: AsyncLLM, job: PoolingJob) -> Struct:
    """Run `job` to its end: the body of the answer. One line is logged about it, however it ends.

    Raises RequestError if a sequence failed. Being cancelled, as by a client that hangs up, aborts all of them.
    """
    live: LiveRequest | None = None
    ending = Ending(status=200, reason="done")
    try:
        async with engine.generate(job.requests, OutputOptions(), job.info) as collector:
            live = engine.live_requests.get(job.response_id)
            results = await take_pooled(collector)
    except BaseException as error:
        ending = failed(error, job.endpoint)
        raise
    finally:
        log_outcome(job.info, ending, live)
    # Thousands of vectors take their time, in which the event loop has others to serve.
    return await asyncio.to_thread(job.respond, results)
