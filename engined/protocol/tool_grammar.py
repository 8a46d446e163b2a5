"""The tool calls that a sequence must or may write: the value of a grammar of the kind "tool_calls", as JSON."""

from typing import Any, Literal

from msgspec import Struct

Piece = str | int
"""A text, or the id of a special token, which no text stands for."""
Pieces = list[Piece]


class TaggedPieces(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Arguments one by one between tags. Strings stand there raw, all else as JSON."""

    before_key: Pieces
    after_key: Pieces
    after_value: Pieces


class CallPieces(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """before_calls (before_name NAME before_arguments ARGUMENTS after_arguments) between_calls (...) after_calls"""

    before_calls: Pieces = []
    before_name: Pieces = []
    before_arguments: Pieces = []
    after_arguments: Pieces = []
    between_calls: Pieces = []
    after_calls: Pieces = []
    tagged: TaggedPieces | None = None
    """None: the arguments are a JSON object."""
    trigger: Pieces = []
    """Empty: calls are only known by their place, at the beginning of the output."""


class GrammarTool(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One tool that may be called."""

    name: str
    parameters: dict[str, Any]
    """JSON schema of the arguments, which are an object in any case."""


class ToolCallGrammar(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Which calls, in what syntax."""

    mode: Literal["required", "auto"]
    """required: the output is one call or more, and nothing else. auto: free text, in which calls are held to the
    syntax once they have begun."""
    max_calls: int
    content_schema: dict[str, Any] | None = None
    """With auto: content, if there is no call, is JSON by this schema instead of free text."""
    tools: list[GrammarTool]
    syntax: CallPieces
    fallback: CallPieces | None = None
    """For tools whose arguments cannot be written between tags."""
    markers: list[str] = []
    """Texts that the parser looks for, whether tokens have them or not: free text and bare strings hold none."""
    content_prefix: Pieces = []
    """What stands before content. If there is any, an answer is either content or calls, not text with calls in it."""
