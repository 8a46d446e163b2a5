"""All formats of tool calls and of reasoning by name, and which one a model has. Frontend process, at its start; the
parsers are made for each choice.
"""

from collections.abc import Collection, Mapping
from typing import TypeVar

from engined.errors import ConfigError
from engined.frontend.parsing.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from engined.frontend.parsing.dsml import DEEPSEEK_V4, DEEPSEEK_V32, DEEPSEEK_V41
from engined.frontend.parsing.format import OutputFormat, ReasoningFormat, ToolFormat
from engined.frontend.parsing.gemma4 import GEMMA4, GEMMA4_REASONING
from engined.frontend.parsing.glm import GLM45, GLM47
from engined.frontend.parsing.harmony import OPENAI, OPENAI_REASONING
from engined.frontend.parsing.hermes import HERMES
from engined.frontend.parsing.json_calls import JSON
from engined.frontend.parsing.kimi_k2 import KIMI_K2
from engined.frontend.parsing.kimi_k3 import KIMI_K3, KIMI_K3_REASONING
from engined.frontend.parsing.llama3_json import LLAMA3_JSON
from engined.frontend.parsing.llama4_pythonic import LLAMA4_PYTHONIC
from engined.frontend.parsing.mistral import MISTRAL, MISTRAL_REASONING, MISTRAL_V3
from engined.frontend.parsing.parser import OutputParser, ParserContext
from engined.frontend.parsing.plain import PlainParser
from engined.frontend.parsing.qwen3_coder import QWEN3_CODER
from engined.frontend.parsing.reasoning_splitter import ReasoningSplitter
from engined.frontend.parsing.think import GLM45_THINK, THINK, THINK_WITHOUT_SEPARATOR

# With "auto" the first that a template is written in wins, so that what is special stands before what is common.
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    tools.name: tools
    for tools in (
        OPENAI,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        DEEPSEEK_V32,
        DEEPSEEK_V4,
        DEEPSEEK_V41,
        KIMI_K2,
        KIMI_K3,
        MISTRAL,
        MISTRAL_V3,
        QWEN3_CODER,
        GLM45,
        GLM47,
        GEMMA4,
        HERMES,
        LLAMA4_PYTHONIC,
        LLAMA3_JSON,
        JSON,
    )
}
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    **{
        reasoning.name: reasoning
        for reasoning in (
            OPENAI_REASONING,
            KIMI_K3_REASONING,
            MISTRAL_REASONING,
            GEMMA4_REASONING,
            GLM45_THINK,
            THINK_WITHOUT_SEPARATOR,
            THINK,
        )
    },
    # The same under vLLM's names.
    "qwen3": THINK,
    "deepseek_r1": THINK,
    "deepseek_v3": THINK_WITHOUT_SEPARATOR,
    "kimi_k2": THINK_WITHOUT_SEPARATOR,
}

Format = TypeVar("Format", ToolFormat, ReasoningFormat)


def choose_format(
    template_source: str | None, tool_parser: str, reasoning_parser: str, special_tokens: Collection[str]
) -> OutputFormat:
    """The formats that two options ask for: "auto" (by the chat template), "none", or a name.

    A template of no known family gets the tool format "json". `special_tokens` are the texts of the tokenizer's.
    Raises ConfigError for an unknown name, and for two that exclude each other.
    """
    tools = _choose("--tool-call-parser", tool_parser, TOOL_FORMATS, template_source)
    if tools is None and tool_parser == "auto":
        tools = JSON
    reasoning = _choose("--reasoning-parser", reasoning_parser, REASONING_FORMATS, template_source)
    if reasoning_parser != "auto" and tools is not None and tools.parses_reasoning:
        _check_together(tools, reasoning, reasoning_parser)
    markers = list(tools.markers) if tools is not None else []
    if reasoning is not None:
        markers += [reasoning.begin, reasoning.end, reasoning.separator, reasoning.content_prefix]
    kept_tokens = frozenset(token for token in special_tokens if token and any(token in marker for marker in markers))
    return OutputFormat(reasoning=reasoning, tools=tools, kept_tokens=kept_tokens)


def new_parser(output_format: OutputFormat, context: ParserContext) -> OutputParser:
    """A parser for one choice: reasoning is split off first, what follows it is searched for calls."""
    tools, reasoning = output_format.tools, output_format.reasoning
    if tools is not None and tools.parses_reasoning:
        return tools.new_parser(context)
    answer_parser = tools.new_parser(context) if tools is not None and context.tools else PlainParser()
    if reasoning is None:
        return answer_parser
    begin_of_calls = tools.ends_reasoning if tools is not None and context.tools else None
    return ReasoningSplitter(reasoning, answer_parser, is_open=context.is_reasoning_open, begin_of_calls=begin_of_calls)


def _check_together(tools: ToolFormat, reasoning: ReasoningFormat | None, name: str) -> None:
    """A parser that finds reasoning by itself heeds no other format: ConfigError, rather than ignore the option."""
    if reasoning is None or not any(marker in reasoning.begin for marker in tools.markers):
        raise ConfigError(
            f"--reasoning-parser {name}: the tool calls of {tools.name} bring their own reasoning: leave it out, "
            "or give --tool-call-parser none too"
        )


def _choose(flag: str, name: str, formats: Mapping[str, Format], template_source: str | None) -> Format | None:
    if name == "none":
        return None
    if name == "auto":
        candidates = formats.values() if template_source is not None else ()
        return next((known for known in candidates if known.is_written_in(template_source or "")), None)
    if name not in formats:
        raise ConfigError(f"{flag} {name!r} is unknown: choose auto, none, {', '.join(sorted(formats))}")
    return formats[name]
