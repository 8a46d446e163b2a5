"""From tool calls in the syntax of one family of models to a grammar. Pure; called by `source`.

Its rules: `start` places the calls; `call` is one of any tool; `tool_0`, `tool_1`, ... are tools, from their name on.
Where a trigger begins a call in the midst of free text, `triggered` is the text, the trigger, and the rest of the call.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engined.errors import GrammarError
from engined.grammar.json_calls import arguments_schema, json_calls_or_content
from engined.grammar.lark import Terminals, join, json_value, merge, text_without
from engined.grammar.tagged_arguments import TaggedArguments
from engined.protocol.tool_grammar import CallPieces, GrammarTool, Pieces, ToolCallGrammar

MAX_TOOLS = 128
_NAME = re.compile(r"[^\s\x00-\x1f\x7f\"'\\<>(){}\[\]=,]{1,128}")
_COMMENT = " // "
_PLACE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?(.*)", re.DOTALL)
_LIKE_A_CALL = r"/\s*(```[a-z]*\s*)?[{\[](?s:.*)/"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The tools that are written in one syntax."""

    rule: str
    syntax: CallPieces
    write_arguments: Callable[[dict[str, Any]], str]
    tools: list[str] = field(default_factory=list)
    """What follows `before_name`, for each."""

    def add(self, tool: GrammarTool) -> None:
        """Raises GrammarError for arguments that cannot be held to their schema."""
        arguments = self.write_arguments(arguments_schema(tool.parameters))
        syntax = self.syntax
        body = join([tool.name, *syntax.before_arguments], arguments, syntax.after_arguments)
        self.tools.append(f"{body}{_COMMENT}{tool.name}")


def tool_calls_to_lark(grammar: ToolCallGrammar, any_whitespace: bool) -> str:
    """The grammar in the library's language.

    Raises GrammarError, naming the tool, for arguments that cannot be held to their schema.
    """
    if not 0 < len(grammar.tools) <= MAX_TOOLS:
        raise GrammarError(f"it has {len(grammar.tools)} tools, but 1 to {MAX_TOOLS} can be enforced: offer fewer")
    for tool in grammar.tools:
        if not _NAME.fullmatch(tool.name):
            raise GrammarError(
                f"the name of tool {tool.name!r} is too long, or has a character that a call cannot hold"
            )
    if grammar.content_schema is not None and not grammar.syntax.trigger:
        return json_calls_or_content(grammar, grammar.content_schema, any_whitespace)
    terminals = Terminals()
    groups = _groups(grammar, any_whitespace, terminals)
    rules = [*_start(grammar, groups, any_whitespace), *_call(groups)]
    return "\n".join([*rules, f"TEXT: {text_without(grammar.markers)}", *terminals.definitions])


def name_tool(lark: str, reason: str) -> str:
    """A reason that the library gives for not compiling, with the name of the tool instead of a line."""
    place = _PLACE.fullmatch(reason)
    line = lark.splitlines()[int(place[1]) - 1] if place else ""
    return f"tool {line.rsplit(_COMMENT)[-1]!r}: {place[2]}" if place and _COMMENT in line else reason


def _groups(grammar: ToolCallGrammar, any_whitespace: bool, terminals: Terminals) -> list[_Group]:
    def write_json(schema: dict[str, Any]) -> str:
        return json_value(schema, any_whitespace)

    syntax, write = grammar.syntax, write_json
    if syntax.tagged is not None:
        write = TaggedArguments(
            pieces=syntax.tagged, markers=grammar.markers, any_whitespace=any_whitespace, terminals=terminals
        ).rule
    groups = [_Group(rule="tool", syntax=syntax, write_arguments=write)]
    if grammar.fallback is not None:
        groups.append(_Group(rule="fallback_tool", syntax=grammar.fallback, write_arguments=write_json))
    for tool in grammar.tools:
        _add_to_first(groups, tool)
    return [group for group in groups if group.tools]


def _add_to_first(groups: list[_Group], tool: GrammarTool) -> None:
    """Add a tool to the first group whose syntax can hold its arguments."""
    for group in groups:
        try:
            group.add(tool)
            return
        except GrammarError as error:
            reason = error
    raise GrammarError(f"tool {tool.name!r}: {reason}, which cannot be enforced for this model")


def _start(grammar: ToolCallGrammar, groups: list[_Group], any_whitespace: bool) -> list[str]:
    syntax, most = grammar.syntax, grammar.max_calls
    more = f"({join(syntax.between_calls, 'call')}){{0,{most - 1}}}" if most > 1 else ""
    calls = join(syntax.before_calls, "call", more, syntax.after_calls)
    if grammar.mode == "required":
        return [f"start: {calls}"]
    if grammar.content_schema is not None:
        content = json_value(grammar.content_schema, any_whitespace)
        return [f"start: {calls} | {join(grammar.content_prefix, content)}"]
    if grammar.content_prefix:
        return [f"start: {calls} | {join(grammar.content_prefix, 'TEXT')}"]
    if not syntax.trigger:
        return [f"start: {calls} | PLAIN", f"PLAIN: {text_without(grammar.markers)} & ~({_LIKE_A_CALL})"]
    if syntax.before_calls:  # one section of calls
        return [f"start: (triggered {join(more, syntax.after_calls)})? TEXT", *_triggered(syntax.trigger, groups)]
    return [f"start: triggered{{0,{most}}} TEXT", *_triggered(syntax.trigger, groups)]


def _triggered(trigger: Pieces, groups: list[_Group]) -> list[str]:
    begun = " | ".join(
        join(_after(trigger, [*group.syntax.before_calls, *group.syntax.before_name]), group.rule) for group in groups
    )
    if isinstance(trigger[0], int):
        return [f"triggered: TEXT {join(trigger)} ({begun})"]
    return [f"triggered: trigger ({begun})", f"trigger[lazy]: TEXT {join(trigger)}"]


def _after(trigger: Pieces, pieces: Pieces) -> Pieces:
    """What follows the trigger in `pieces`, which begin with it."""
    rest = merge(pieces)
    for piece in merge(trigger):
        first = rest.pop(0)
        if isinstance(first, str) and isinstance(piece, str):
            assert first.startswith(piece), f"calls do not begin with their trigger: {trigger}, {pieces}"
            rest.insert(0, first[len(piece) :])
        else:
            assert first == piece, f"calls do not begin with their trigger: {trigger}, {pieces}"
    return rest


def _call(groups: list[_Group]) -> list[str]:
    rules = ["call: " + " | ".join(join(group.syntax.before_name, group.rule) for group in groups)]
    for group in groups:
        names = [f"{group.rule}_{index}" for index in range(len(group.tools))]
        rules.append(f"{group.rule}: " + " | ".join(names))
        rules += [f"{name}: {tool}" for name, tool in zip(names, group.tools, strict=True)]
    return rules
