"""GET /admin/status, GET /admin/requests and DELETE /admin/requests/{id}, for operators. Frontend process."""

import asyncio
import logging
import platform
import time
from collections.abc import Mapping

from aiohttp import web

from engined import __version__
from engined.errors import EnginedError, RequestError
from engined.frontend.api.admin import (
    CancelledRequest,
    EngineFacts,
    LiveRequestList,
    LiveRequestObject,
    Load,
    ServerStatus,
    Versions,
)
from engined.frontend.api.operation import READ_ERRORS, Operation
from engined.frontend.http_errors import struct_response
from engined.frontend.lifecycle import Lifecycle
from engined.frontend.live_requests import LiveRequest
from engined.frontend.metrics import Metrics
from engined.frontend.middleware import REQUEST_ID
from engined.frontend.recent_rates import RecentRates
from engined.frontend.serving.context import ServingContext
from engined.protocol.engine import EngineReady

logger = logging.getLogger(__name__)

POSITION_SECONDS = 1.0
"""How long the engine may take to tell the order of its queue. Without it the list has no positions, but it comes: it
is needed most when the engine is stuck."""
_TAG = "Operations"


class AdminRoutes:
    """What `engined ps`, `engined kill` and `engined status` ask."""

    def __init__(self, context: ServingContext, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self._context = context
        self._engine = context.engine
        self._live_requests = context.engine.live_requests
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._start_time = time.monotonic()
        self.rates = RecentRates(self._read_counts, time.monotonic)

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_get("/admin/status", self.status)
        router.add_get("/admin/requests", self.list_requests)
        router.add_delete("/admin/requests/{request_id}", self.cancel_request)

    def operations(self) -> tuple[Operation, ...]:
        """What the routes answer."""
        return (
            Operation(
                method="GET",
                path="/admin/status",
                summary="How the server is doing: health, model, KV cache, rates",
                tag=_TAG,
                response=ServerStatus,
            ),
            Operation(
                method="GET",
                path="/admin/requests",
                summary="List the requests that are under way",
                tag=_TAG,
                response=LiveRequestList,
            ),
            Operation(
                method="DELETE",
                path="/admin/requests/{request_id}",
                summary="End a request that is under way",
                description="Its client gets an error: 410 request_cancelled, or an event of its stream.",
                tag=_TAG,
                response=CancelledRequest,
                error_statuses=(404, 409, *READ_ERRORS),
            ),
        )

    async def status(self, request: web.Request) -> web.Response:
        """How the server is doing; 200 whatever that is."""
        reason, state, info = self._lifecycle.unready_reason, self._lifecycle.state, self._context.model_info
        start_time = self._start_time if state.start_time is None else state.start_time
        return struct_response(
            ServerStatus(
                status="ready" if reason is None else "unavailable",
                reason=reason,
                phase=state.phase,
                detail=state.text,
                restarts=state.num_restarts,
                uptime_s=round(time.monotonic() - start_time, 3),
                models=list(self._context.model_names),
                runner=info.runner,
                engine=_facts(self._engine.ready),
                load=self._load(),
                versions=Versions(engined=__version__, python=platform.python_version()),
            )
        )

    async def list_requests(self, request: web.Request) -> web.Response:
        """The requests that are under way, the oldest first."""
        positions = await self._read_positions()
        return struct_response(LiveRequestList(data=[self._describe(live, positions) for live in self._live_requests]))

    async def cancel_request(self, request: web.Request) -> web.Response:
        """End the request of exactly this id; 404 if none has it."""
        request_id = request.match_info["request_id"]
        live = self._live_requests.get(request_id)
        if live is None:
            raise RequestError(
                "no request that is under way has this id; GET /admin/requests lists them",
                status=404,
                code="request_not_found",
            )
        self._engine.cancel(live)
        logger.warning("%s (%s): ended by an operator (%s)", request_id, live.info.label, request[REQUEST_ID])
        return struct_response(CancelledRequest(id=request_id))

    async def _read_positions(self) -> dict[str, int]:
        """Places of the sequences in the engine's queue, from 1; empty if there is no telling."""
        if not self._live_requests:
            return {}
        try:
            async with asyncio.timeout(POSITION_SECONDS):
                waiting = await self._engine.waiting_request_ids()
        except (TimeoutError, EnginedError):
            return {}
        return {request_id: position for position, request_id in enumerate(waiting, start=1)}

    def _describe(self, live: LiveRequest, positions: Mapping[str, int]) -> LiveRequestObject:
        info = live.info
        state, position = live.stand(positions)
        return LiveRequestObject(
            id=info.response_id,
            label=info.label,
            key=info.caller.name,
            endpoint=info.endpoint,
            model=self._context.model_names[0],
            state=state,
            position=position,
            num_sequences=len(live.sequences),
            prompt_tokens=info.num_prompt_tokens,
            cached_tokens=live.num_cached_tokens,
            generated_tokens=live.num_generated_tokens,
            age_s=round(time.monotonic() - info.arrival_time, 3),
            stream=info.is_stream,
            background=live.is_background,
        )

    def _load(self) -> Load:
        stats = self._metrics.stats
        prompt_rate, generated_rate, request_rate = (round(rate, 3) for rate in self.rates.read())
        queries = stats.prefix_cache_queries
        return Load(
            live_requests=len(self._live_requests),
            running=stats.num_running,
            waiting=stats.num_waiting,
            kv_cache_usage=stats.kv_cache_usage,
            preemptions=stats.num_preemptions,
            prefix_cache_hit_rate=round(stats.prefix_cache_hits / queries, 4) if queries else None,
            prompt_tokens_per_s=prompt_rate,
            generated_tokens_per_s=generated_rate,
            requests_per_s=request_rate,
        )

    def _read_counts(self) -> tuple[int, int, int]:
        metrics = self._metrics
        return metrics.num_prompt_tokens, metrics.num_generation_tokens, self._live_requests.num_ended


def _facts(ready: EngineReady | None) -> EngineFacts | None:
    if ready is None:
        return None
    return EngineFacts(
        pid=ready.pid,
        version=ready.version,
        dtype=ready.dtype,
        quantization=ready.quantization,
        kv_cache_dtype=ready.kv_cache_dtype,
        num_kv_blocks=ready.num_kv_blocks,
        block_size=ready.block_size,
        max_model_len=ready.max_model_len,
    )
