"""From the tools of a request, and the way in which its model writes calls, to a constraint. Frontend process; pure.

Whether the constraint can be kept is found out by compiling it: `rendering/grammar_checker`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from engined.errors import RequestError
from engined.frontend.parsing.format import CallSyntax, ToolFormat
from engined.protocol.grammar import GrammarSpec
from engined.protocol.tool_grammar import CallPieces, GrammarTool, Pieces, TaggedPieces, ToolCallGrammar


def build_tool_grammar(
    tool_format: ToolFormat,
    tools: Sequence[GrammarTool],
    *,
    mode: Literal["required", "auto"],
    max_calls: int,
    content_schema: dict[str, Any] | None = None,
    special_token_ids: Mapping[str, int],
    content_prefix: str = "",
) -> GrammarSpec:
    """The constraint to calls of `tools`, `max_calls` at most, in the format of the model. `content_prefix` is that of
    its reasoning format, unless it was demanded before.

    `special_token_ids` has the special tokens of the model's tokenizer by their text (not the added tokens that are not
    special: they are text). Raises RequestError for a schema that is no JSON. The format must have a syntax.
    """
    syntax, fallback = tool_format.syntax, tool_format.syntax_if_tagged_fails
    assert syntax is not None, f"calls of the format {tool_format.name} cannot be enforced"
    grammar = ToolCallGrammar(
        mode=mode,
        max_calls=1 if syntax.is_single else max_calls,
        content_schema=content_schema,
        tools=list(tools),
        syntax=_to_pieces(syntax, special_token_ids),
        fallback=None if fallback is None else _to_pieces(fallback, special_token_ids),
        markers=list(tool_format.markers),
        content_prefix=_split(content_prefix, special_token_ids),
    )
    try:
        return GrammarSpec(kind="tool_calls", value=msgspec.json.encode(grammar).decode())
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"tools: the parameters of a tool cannot be written as JSON: {error}", param="tools"
        ) from None


def _to_pieces(syntax: CallSyntax, special_token_ids: Mapping[str, int]) -> CallPieces:
    def split(text: str) -> Pieces:
        return _split(text, special_token_ids)

    tagged = None
    if syntax.tagged is not None:
        tagged = TaggedPieces(
            before_key=split(syntax.tagged.before_key),
            after_key=split(syntax.tagged.after_key),
            after_value=split(syntax.tagged.after_value),
        )
    return CallPieces(
        before_calls=split(syntax.before_calls),
        before_name=split(syntax.before_name),
        before_arguments=split(syntax.before_arguments),
        after_arguments=split(syntax.after_arguments),
        between_calls=split(syntax.between_calls),
        after_calls=split(syntax.after_calls),
        tagged=tagged,
        trigger=split(syntax.trigger or ""),
    )


def _split(text: str, special_token_ids: Mapping[str, int]) -> Pieces:
    """The text, with ids for the special tokens in it."""
    if not special_token_ids:
        return [text] if text else []
    longest_first = sorted(special_token_ids, key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
    return [special_token_ids.get(part, part) for part in parts if part]
