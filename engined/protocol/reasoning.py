"""A block of reasoning before the output that a grammar constrains: what the engine must know of it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSpec:
    """One sequence's reasoning. The grammar of the request, if it has one, begins behind the separator."""

    begin: str
    """For example "<think>"."""
    end: str
    separator: str = ""
    """Written between the end and what follows it, whatever the model thinks: for example two line feeds."""
    start: Literal["open", "optional", "required"]
    """open: the prompt ends inside the block. optional: the output may begin one. required: it must."""
    max_tokens: int | None = None
    """The end is enforced after so many tokens of reasoning (0: at once). None: there is no bound."""
