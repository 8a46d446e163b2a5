"""Puts one frontend together: model files, engine link, routes. Frontend process; `server` runs what it builds."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from engined.checkpoint.model_info import ModelInfo
from engined.config.directories import data_directory
from engined.config.schema import Config
from engined.frontend.access.addressing import addressing_middleware
from engined.frontend.access.control import AccessControl
from engined.frontend.admission.gate import Gate
from engined.frontend.admission.middleware import add_rate_limit_headers, admission_middleware
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.auth import auth_middleware
from engined.frontend.batches.answers import BatchAnswers
from engined.frontend.batches.service import BatchService
from engined.frontend.connection_limits import connection_limits
from engined.frontend.daemon_metrics import DaemonCollector
from engined.frontend.lifecycle import Lifecycle
from engined.frontend.loop_lag import LoopLag
from engined.frontend.metrics import Metrics, MetricsCollector, MetricsPage
from engined.frontend.middleware import (
    add_request_id,
    drain_middleware,
    error_middleware,
    request_id_middleware,
)
from engined.frontend.pressure import Pressure, PressureCollector
from engined.frontend.recent_rates import RecentRates
from engined.frontend.request_log import request_log_middleware
from engined.frontend.routes.admin import AdminRoutes
from engined.frontend.routes.batches import BatchRoutes
from engined.frontend.routes.body import add_field_warning
from engined.frontend.routes.documentation import DocumentationRoutes
from engined.frontend.routes.files import FileRoutes
from engined.frontend.routes.generation import GenerationRoutes
from engined.frontend.routes.messages import MessagesRoutes
from engined.frontend.routes.models import ModelRoutes
from engined.frontend.routes.operations import OperationRoutes
from engined.frontend.routes.pooling import PoolingRoutes
from engined.frontend.routes.responses import ResponsesRoutes
from engined.frontend.routes.tokens import TokenRoutes
from engined.frontend.serving.build import build_serving_context
from engined.frontend.serving.context import ServingContext
from engined.process.board import DaemonState, serving_state
from engined.trace.tracer import NO_TRACER, Tracer

MAX_BATCH_LINES_UNDER_WAY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """The parts of a frontend that have a life of their own."""

    app: web.Application
    engine: AsyncLLM
    context: ServingContext
    lifecycle: Lifecycle
    batches: BatchService
    access: AccessControl
    pressure: Pressure
    rates: RecentRates


def build_frontend(
    config: Config,
    model_info: ModelInfo,
    engine_socket: str,
    read_state: Callable[[], DaemonState] = serving_state,
    tracer: Tracer = NO_TRACER,
) -> Frontend:
    """Load the tokenizer and the chat template and wire everything up. `read_state` tells how the daemon is doing.

    Raises ModelError or ConfigError if the model's files or the options do not allow it.
    """
    access = AccessControl(config.server)
    metrics = Metrics()
    context = build_serving_context(config, model_info, metrics, engine_socket, read_state, tracer)
    lifecycle = Lifecycle(context.engine, read_state)
    server = config.server
    pressure = Pressure(
        gate=Gate(context.engine.backlog, server.max_queued_requests, server.max_queued_tokens),
        connections=connection_limits(server),
        loop_lag=LoopLag(),
    )
    app = web.Application(
        client_max_size=config.server.max_body_size,
        middlewares=[
            request_id_middleware,
            request_log_middleware(metrics),
            error_middleware,
            addressing_middleware(access.addressing),
            drain_middleware(lifecycle),
            auth_middleware(access.keys),
            admission_middleware(pressure.gate),
        ],
    )
    app.on_response_prepare.append(add_request_id)
    app.on_response_prepare.append(add_field_warning)
    app.on_response_prepare.append(add_rate_limit_headers)
    app.on_response_prepare.append(access.addressing.add_cors_headers)
    batches = _build_batch_service(config, context)
    admin = AdminRoutes(context, lifecycle, metrics)
    routes = (
        GenerationRoutes(context),
        MessagesRoutes(context),
        ResponsesRoutes(context),
        PoolingRoutes(context),
        FileRoutes(batches),
        BatchRoutes(batches),
        TokenRoutes(context),
        ModelRoutes(context),
        OperationRoutes(
            context.engine,
            lifecycle,
            MetricsPage(
                *_engine_collectors(metrics, context),
                DaemonCollector(metrics, lifecycle),
                PressureCollector(pressure),
            ),
        ),
        admin,
    )
    for group in routes:
        group.register(app.router)
    DocumentationRoutes(operation for group in routes for operation in group.operations()).register(app.router)
    return Frontend(
        app=app,
        engine=context.engine,
        context=context,
        lifecycle=lifecycle,
        batches=batches,
        access=access,
        pressure=pressure,
        rates=admin.rates,
    )


def _engine_collectors(metrics: Metrics, context: ServingContext) -> list[MetricsCollector]:
    labels = {"model_name": context.model_names[0]}
    collectors = [MetricsCollector(metrics, labels)]
    if context.server.metrics_vllm_names:
        collectors.append(MetricsCollector(metrics, labels | {"engine": "0"}, prefix="vllm"))
    return collectors


def _build_batch_service(config: Config, context: ServingContext) -> BatchService:
    data_dir = config.server.data_dir
    path = data_directory(os.environ) if data_dir is None else Path(data_dir)
    # Enough lines to fill the engine's seats, few enough that their bodies fit the memory.
    max_lines = min(config.scheduler.max_num_seqs, MAX_BATCH_LINES_UNDER_WAY)
    return BatchService(path, BatchAnswers(context), context.engine, max_lines)
