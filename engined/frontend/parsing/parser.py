"""What every parser of model output is. Frontend process; one object for each choice of a request."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engined.frontend.parsing.events import OutputEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserContext:
    """What a parser knows of its request."""

    tools: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """The JSON schema of the parameters of each tool that may be called, by name. Empty: calls are not looked for, and
    what looks like one is content."""
    is_reasoning_open: bool = False
    """The prompt ends inside a block of reasoning, which the text therefore continues."""


class OutputParser(ABC):
    """A state machine over the text of one choice.

    The text may come in any pieces: the events, their neighbours of one kind joined, do not depend on the cutting. It
    takes linear time, and nothing makes it raise: what is not understood is content. Text is given out as soon as it is
    certain what it is; arguments as they grow.
    """

    @abstractmethod
    def feed(self, text: str) -> list[OutputEvent]:
        """Take the next piece of text."""

    @abstractmethod
    def finish(self) -> list[OutputEvent]:
        """The text is over: what was held back, and never a tag. Nothing may be fed any more."""
