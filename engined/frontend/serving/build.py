"""Builds what the serving layer works with, from a configuration and a model.

For a frontend process, and for an offline `LLM` in its caller's process: both render, tokenize and resolve settings
with the same parts.
"""

import logging
import time
from collections.abc import Callable

from engined.checkpoint.model_info import ModelInfo
from engined.config.schema import Config
from engined.frontend.async_llm import AsyncLLM
from engined.frontend.canary import canary
from engined.frontend.engine_client import EngineClient
from engined.frontend.metrics import Metrics
from engined.frontend.output.output_processor import OutputProcessor
from engined.frontend.rendering.chat_template import ChatTemplate
from engined.frontend.rendering.grammar_checker import GrammarChecker
from engined.frontend.rendering.renderer import Renderer
from engined.frontend.rendering.template_source import find_chat_template
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.sampling import SamplingResolver, resolve_defaults
from engined.process.board import DaemonState, serving_state
from engined.tokenization.tokenizer import ModelTokenizer, load_tokenizer

logger = logging.getLogger(__name__)


def build_serving_context(
    config: Config,
    model_info: ModelInfo,
    metrics: Metrics,
    engine_socket: str,
    read_state: Callable[[], DaemonState] = serving_state,
) -> ServingContext:
    """Load the tokenizer and the chat template; nothing is connected yet. `read_state` tells how the daemon is doing.

    Raises ModelError or ConfigError if the model's files or the options do not allow it.
    """
    tokenizer = load_tokenizer(model_info)
    renderer = Renderer(tokenizer, _load_chat_template(config, model_info, tokenizer), model_info.vocab_size)
    grammar_checker = GrammarChecker(tokenizer.backend.to_str, model_info.vocab_size, model_info.eos_token_ids)
    defaults = resolve_defaults(model_info, config.model.override_generation_config)
    return ServingContext(
        model_names=config.model.served_model_name or (model_info.name,),
        created=int(time.time()),
        model_info=model_info,
        engine=AsyncLLM(
            EngineClient(engine_socket), OutputProcessor(tokenizer.backend, metrics), canary(model_info), read_state
        ),
        renderer=renderer,
        grammar_checker=grammar_checker,
        sampling=SamplingResolver(model_info, defaults, tokenizer, config.model.seed),
        server=config.server,
        has_priority=config.scheduler.scheduling_policy == "priority",
    )


def _load_chat_template(config: Config, model_info: ModelInfo, tokenizer: ModelTokenizer) -> ChatTemplate | None:
    source = find_chat_template(model_info, config.model.chat_template)
    if source is None:
        if model_info.runner == "generate":
            logger.warning("the model has no chat template: /v1/chat/completions needs --chat-template FILE")
        return None
    return ChatTemplate(source, tokenizer.special_tokens, tokenizer.special.named)
