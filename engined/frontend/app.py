"""Puts one frontend together: model files, engine link, routes. Frontend process; `server` runs what it builds."""

import logging
import time
from dataclasses import dataclass

from aiohttp import web

from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.auth import ApiKeys, auth_middleware
from engined.frontend.engine_client import EngineClient
from engined.frontend.lifecycle import Lifecycle
from engined.frontend.metrics import Metrics, MetricsPage
from engined.frontend.middleware import (
    add_request_id,
    drain_middleware,
    error_middleware,
    request_id_middleware,
)
from engined.frontend.output.output_processor import OutputProcessor
from engined.frontend.rendering.chat_template import ChatTemplate
from engined.frontend.rendering.renderer import Renderer
from engined.frontend.rendering.template_source import find_chat_template
from engined.frontend.rendering.tokenizer import ModelTokenizer, load_tokenizer
from engined.frontend.routes.generation import GenerationRoutes
from engined.frontend.routes.models import ModelRoutes
from engined.frontend.routes.operations import OperationRoutes
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.sampling import SamplingResolver, resolve_defaults

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """The parts of a frontend that have a life of their own."""

    app: web.Application
    engine: AsyncLLM
    renderer: Renderer
    lifecycle: Lifecycle


def build_frontend(config: Config, model_info: ModelInfo, engine_socket: str) -> Frontend:
    """Load the tokenizer and the chat template and wire everything up.

    Raises ModelError or ConfigError if the model's files or the options do not allow it.
    """
    tokenizer = load_tokenizer(model_info)
    renderer = Renderer(tokenizer, _load_chat_template(config, model_info, tokenizer), model_info.vocab_size)
    defaults = resolve_defaults(model_info, config.model.override_generation_config)
    metrics = Metrics()
    engine = AsyncLLM(EngineClient(engine_socket), OutputProcessor(tokenizer.backend, metrics))
    lifecycle = Lifecycle(engine)
    context = ServingContext(
        model_names=config.model.served_model_name or (model_info.name,),
        created=int(time.time()),
        engine=engine,
        renderer=renderer,
        sampling=SamplingResolver(model_info, defaults, tokenizer, config.model.seed),
        server=config.server,
        has_priority=config.scheduler.scheduling_policy == "priority",
    )
    app = web.Application(
        client_max_size=config.server.max_body_size,
        middlewares=[
            request_id_middleware,
            error_middleware,
            drain_middleware(lifecycle),
            auth_middleware(ApiKeys(config.server.api_key)),
        ],
    )
    app.on_response_prepare.append(add_request_id)
    GenerationRoutes(context).register(app.router)
    ModelRoutes(context).register(app.router)
    metrics_page = MetricsPage(metrics, context.model_names[0])
    OperationRoutes(engine, lifecycle, metrics_page).register(app.router)
    return Frontend(app=app, engine=engine, renderer=renderer, lifecycle=lifecycle)


def _load_chat_template(config: Config, model_info: ModelInfo, tokenizer: ModelTokenizer) -> ChatTemplate | None:
    source = find_chat_template(model_info, config.model.chat_template)
    if source is None:
        logger.warning("the model has no chat template: /v1/chat/completions needs --chat-template FILE")
        return None
    return ChatTemplate(source, tokenizer.special_tokens, tokenizer.special.named)
