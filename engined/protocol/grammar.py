"""What constrains the output of one sequence: the part of a request that the engine compiles to a grammar."""

from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark", "structural_tag", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """One constraint, as text."""

    kind: GrammarKind
    value: str
    """The schema as JSON, the regular expression, the choices as a JSON list, the Lark grammar, the structural tag as
    JSON, the `ToolCallGrammar` as JSON; empty for json_object."""
    any_whitespace: bool = True
    """Whether JSON may have (bounded) whitespace between its tokens."""
