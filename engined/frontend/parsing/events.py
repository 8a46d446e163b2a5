"""What a parser finds in the text of one choice, in order. Frontend process; made by parsers, taken by formatters."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """The next piece of what the model thinks, without the tags around it. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """The next piece of the answer itself. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A call begins. Its arguments follow, and then its end, unless the text breaks off."""

    index: int
    """0 for the first call of the choice, then 1, ..."""
    name: str
    call_id: str | None = None
    """Given where the model itself writes an id."""


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next piece of the arguments of call `index`: JSON text, byte for byte what the model wrote where it writes
    JSON. Never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """Call `index` is whole: its arguments are a JSON object. A call that was cut off has no such event."""

    index: int


OutputEvent = ReasoningText | ContentText | ToolCallBegin | ToolCallArguments | ToolCallEnd
