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
from engined.frontend.parsing.format import OutputFormat, ReasoningFormat, ToolFormat
from engined.frontend.parsing.formats import choose_format
from engined.frontend.rendering.chat_template import ChatTemplate
from engined.frontend.rendering.grammar_checker import GrammarChecker
from engined.frontend.rendering.renderer import Renderer
from engined.frontend.rendering.template_source import TemplateSources, find_chat_template
from engined.frontend.rendering.tool_prompt import JSON_SYNTAX
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.sampling import SamplingResolver, resolve_defaults
from engined.process.board import DaemonState, serving_state
from engined.tokenization.tokenizer import ModelTokenizer, load_tokenizer
from engined.trace.tracer import NO_TRACER, Tracer

logger = logging.getLogger(__name__)


def build_serving_context(
    config: Config,
    model_info: ModelInfo,
    metrics: Metrics,
    engine_socket: str,
    read_state: Callable[[], DaemonState] = serving_state,
    tracer: Tracer = NO_TRACER,
) -> ServingContext:
    """Load the tokenizer and the chat template; nothing is connected yet. `read_state` tells how the daemon is doing.

    Raises ModelError or ConfigError if the model's files or the options do not allow it.
    """
    tokenizer = load_tokenizer(model_info)
    sources = find_chat_template(model_info, config.model.chat_template)
    output_format = _choose_format(config, model_info, sources, tokenizer)
    renderer = _build_renderer(model_info, sources, tokenizer, output_format, tracer)
    grammar_checker = GrammarChecker(tokenizer.backend.to_str, model_info.vocab_size, model_info.eos_token_ids)
    defaults = resolve_defaults(model_info, config.model.override_generation_config)
    return ServingContext(
        model_names=config.model.served_model_name or (model_info.name,),
        created=int(time.time()),
        model_info=model_info,
        engine=AsyncLLM(
            EngineClient(engine_socket, tracer.track("engine link")),
            OutputProcessor(tokenizer.backend, metrics),
            canary(model_info),
            read_state,
            tracer,
        ),
        renderer=renderer,
        output_format=output_format,
        grammar_checker=grammar_checker,
        sampling=SamplingResolver(model_info, defaults, tokenizer, config.model.seed),
        server=config.server,
        has_priority=config.scheduler.scheduling_policy == "priority",
    )


def _choose_format(
    config: Config, model_info: ModelInfo, sources: TemplateSources | None, tokenizer: ModelTokenizer
) -> OutputFormat:
    model = config.model
    chosen = choose_format(
        None if sources is None else sources.all,
        model.tool_call_parser,
        model.reasoning_parser,
        tokenizer.special_tokens,
    )
    if model_info.runner == "generate":
        logger.info(
            "answers are read for tool calls (%s) and for reasoning (%s)",
            _describe(chosen.tools, "--tool-call-parser", model.tool_call_parser),
            _describe(chosen.reasoning, "--reasoning-parser", model.reasoning_parser),
        )
    return chosen


def _describe(chosen: ToolFormat | ReasoningFormat | None, flag: str, value: str) -> str:
    reason = "by the chat template" if value == "auto" else f"by {flag}"
    return f"{'none' if chosen is None else chosen.name}, {reason}"


def _build_renderer(
    model_info: ModelInfo,
    sources: TemplateSources | None,
    tokenizer: ModelTokenizer,
    output_format: OutputFormat,
    tracer: Tracer,
) -> Renderer:
    if sources is None:
        if model_info.runner == "generate":
            logger.warning("the model has no chat template: /v1/chat/completions needs --chat-template FILE")
        return Renderer(tokenizer, None, model_info.vocab_size, tracer=tracer)
    tools = output_format.tools
    syntax = JSON_SYNTAX if tools is None or tools.syntax is None else tools.syntax
    chat, for_tools = (
        None if source is None else ChatTemplate(source, tokenizer.special_tokens, tokenizer.special.named, syntax)
        for source in (sources.chat, sources.tools)
    )
    return Renderer(tokenizer, chat, model_info.vocab_size, for_tools, tracer)
