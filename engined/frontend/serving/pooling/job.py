"""One HTTP request that is pooled, whatever its route: its sequences, its answer, its log line. Frontend process."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from engined.errors import EnginedError
from engined.frontend.api.pooling import PoolingFields
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.rendering.pooling_input import PoolingInput
from engined.protocol.engine import EngineCoreRequest
from engined.protocol.pooling import PoolingParams
from engined.protocol.sampling import SamplingParams

logger = logging.getLogger(__name__)

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
    ending = "error"
    try:
        results = await engine.pool(job.requests)
        ending = "done"
    except asyncio.CancelledError:
        ending = "client_disconnect"
        raise
    except EnginedError as error:
        ending = f"error: {error}"
        raise
    finally:
        # Numbers and ids only: texts are never logged.
        logger.info(
            "%s (%s): %s; %d prompt tokens in %d sequences; total %.3f s",
            job.response_id,
            job.label,
            ending,
            sum(len(request.prompt_token_ids) for request in job.requests),
            len(job.requests),
            time.monotonic() - job.arrival_time,
        )
    # Thousands of vectors take their time, in which the event loop has others to serve.
    return await asyncio.to_thread(job.respond, results)
