"""What the answer of a chat request must match: its own constraint, calls of tools, or one of both. Frontend process.

Whether that can be kept is found out by compiling it: `rendering/grammar_checker`.
"""

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engined.errors import RequestError
from engined.frontend.parsing.format import ToolFormat
from engined.frontend.parsing.tool_grammar import build_tool_grammar
from engined.frontend.rendering.grammar_checker import GrammarChecker
from engined.frontend.serving.constraints import Constraint
from engined.frontend.serving.context import ServingContext
from engined.frontend.serving.tools import Tool, ToolUse, max_calls
from engined.grammar.limits import COMPILE_SECONDS
from engined.protocol.grammar import GrammarSpec
from engined.protocol.tool_grammar import GrammarTool


async def resolve_answer_grammar(
    constraint: Constraint | None, tools: ToolUse, context: ServingContext
) -> GrammarSpec | None:
    """The grammar of the whole answer behind its reasoning; None if it is free.

    Raises RequestError if the constraint and the tools contradict each other, are faulty, or cannot be kept.
    """
    tool_format = context.output_format.tools
    if tools.mode == "none" or tool_format is None:
        if constraint is None:
            return None
        await context.grammar_checker.check(constraint.grammar, constraint.param)
        return constraint.grammar
    if tools.mode == "auto" and not tools.is_strict and constraint is None:
        return None
    content_schema = None if constraint is None else _content_schema(constraint, tools)
    reasoning = context.output_format.reasoning
    _check_syntax(tool_format, tools, constraint)
    build = functools.partial(
        _build,
        tool_format=tool_format,
        use=tools,
        content_schema=content_schema,
        any_whitespace=constraint is None or constraint.grammar.any_whitespace,
        special_token_ids=context.renderer.tokenizer.special_token_ids,
        content_prefix="" if reasoning is None else reasoning.content_prefix,
    )
    grammar = build(tools.callable)
    await _check(grammar, tools.callable, build, context.grammar_checker)
    return grammar


def _build(
    tools: Sequence[Tool],
    *,
    tool_format: ToolFormat,
    use: ToolUse,
    content_schema: dict[str, Any] | None,
    any_whitespace: bool,
    special_token_ids: Mapping[str, int],
    content_prefix: str,
) -> GrammarSpec:
    assert use.mode != "none"
    grammar = build_tool_grammar(
        tool_format,
        [GrammarTool(name=tool.name, parameters=tool.parameters) for tool in tools],
        mode=use.mode,
        max_calls=max_calls(use, tool_format),
        content_schema=content_schema,
        special_token_ids=special_token_ids,
        content_prefix=content_prefix,
    )
    return replace(grammar, any_whitespace=any_whitespace)


def _content_schema(constraint: Constraint, tools: ToolUse) -> dict[str, Any]:
    """The schema of an answer that calls nothing."""
    if tools.mode == "required":
        raise RequestError(
            f'{constraint.param}: tool_choice makes the answer a call: leave one of the two out, or send "auto"',
            param=constraint.param,
        )
    match constraint.grammar.kind:
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            schema: dict[str, Any] | bool = json.loads(constraint.grammar.value)
            if isinstance(schema, bool):
                return {} if schema else {"not": {}}
            return schema
        case _:
            raise RequestError(
                f'{constraint.param} leaves no room for calls: send tool_choice "none", or a JSON schema instead',
                param=constraint.param,
            )


def _check_syntax(tool_format: ToolFormat, tools: ToolUse, constraint: Constraint | None) -> None:
    """Raises RequestError where calls can be read, but not enforced."""
    if tool_format.syntax is not None:
        return
    if constraint is not None:
        param, remedy = constraint.param, 'send tool_choice "none"'
    elif tools.mode == "required":
        param, remedy = "tool_choice", 'send "auto"'
    else:
        strict = next(tool for tool in tools.callable if tool.definition.strict)
        param, remedy = f"{strict.where}.strict", "leave it out"
    raise RequestError(
        f"{param}: the calls of this model ({tool_format.name}) cannot be enforced: {remedy}",
        param=param,
        code="unsupported_parameter",
    )


async def _check(
    grammar: GrammarSpec,
    tools: Sequence[Tool],
    build: Callable[[Sequence[Tool]], GrammarSpec],
    checker: GrammarChecker,
) -> None:
    """Raises RequestError; it names the first tool that is at fault by itself, if one is."""
    try:
        await checker.check(grammar, "tools")
    except RequestError:
        deadline = time.monotonic() + COMPILE_SECONDS
        for tool in tools:
            await checker.check(build([tool]), f"{tool.where}.parameters")
            if time.monotonic() > deadline:
                break
        raise
