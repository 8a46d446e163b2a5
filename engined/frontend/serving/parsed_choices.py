"""The outputs of the choices of one request, parsed into messages. Frontend process; each formatter owns one.

Whole answers and streams go through the same parsers, so that they cannot differ.
"""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from engined.frontend.output.choice_output import ChoiceOutput
from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engined.frontend.parsing.parser import OutputParser
from engined.frontend.serving.generation import Usage

_LETTERS_AND_DIGITS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageParsing:
    """How the answers of one request are to be read."""

    new_parser: Callable[[], OutputParser]
    """A parser for one choice."""
    count_tokens: Callable[[str], int]
    """Of a text, for the usage of reasoning."""
    has_parallel_calls: bool = True
    """Otherwise the first call of a choice is kept, and the others are dropped."""
    includes_reasoning: bool = True
    """Otherwise it is left out of the answer."""
    reports_tool_calls: bool = True
    """Whether calls make the finish reason "tool_calls". Those of a tool that the request named do not (OpenAI)."""
    call_ids: Literal["random", "nine_characters", "function_index"] = "random"
    num_earlier_calls: int = 0
    """Calls in the conversation so far, for ids that count them."""


class ParsedCall:
    """One tool call so far."""

    __slots__ = ("call_id", "name", "is_whole", "_arguments")

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id = call_id
        self.name = name
        self.is_whole = False
        self._arguments: list[str] = []

    @property
    def arguments(self) -> str:
        """JSON text, which is cut off unless the call is whole."""
        return "".join(self._arguments)

    def add(self, text: str) -> None:
        """Append to the arguments."""
        self._arguments.append(text)


class ParsedMessage:
    """What one choice has said so far."""

    __slots__ = ("calls", "_reasoning", "_content")

    def __init__(self) -> None:
        self.calls: list[ParsedCall] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []

    @property
    def reasoning(self) -> str:
        """Without its tags."""
        return "".join(self._reasoning)

    @property
    def content(self) -> str:
        """Without its calls."""
        return "".join(self._content)

    def add(self, event: OutputEvent) -> None:
        """Take what came next. Calls must have ids."""
        match event:
            case ContentText(text):
                self._content.append(text)
            case ToolCallArguments(index, text):
                self.calls[index].add(text)
            case ReasoningText(text):
                self._reasoning.append(text)
            case ToolCallBegin(name=name, call_id=call_id):
                self.calls.append(ParsedCall(call_id or "", name))
            case ToolCallEnd(index):
                self.calls[index].is_whole = True


class ParsedChoices:
    """Owns the parsers of all choices, and what they have found."""

    def __init__(self, parsing: MessageParsing, num_choices: int, *, call_id_prefix: str = "call_") -> None:
        """`call_id_prefix` begins random ids; those of a form that the model's template demands stay as they are."""
        self._parsing = parsing
        self._call_id_prefix = call_id_prefix
        self._parsers = [parsing.new_parser() for _ in range(num_choices)]
        self._reasoning: list[list[str]] = [[] for _ in range(num_choices)]
        self.messages = [ParsedMessage() for _ in range(num_choices)]
        """What the answers hold: without reasoning, if it is not wanted."""

    def take(self, output: ChoiceOutput, usage: Usage) -> list[OutputEvent]:
        """What the delta of a choice brings; with the last one, its reasoning is counted."""
        parser, message = self._parsers[output.index], self.messages[output.index]
        found = parser.feed(output.text) if output.text else []
        if output.finish_reason is not None:
            found = [*found, *parser.finish()]
        events = []
        for event in found:
            if isinstance(event, ReasoningText):
                self._reasoning[output.index].append(event.text)
            if self._is_wanted(event):
                events.append(self._with_id(event))
                message.add(events[-1])
        if output.finish_reason is not None and self._reasoning[output.index]:
            usage.num_reasoning_tokens += self._parsing.count_tokens("".join(self._reasoning[output.index]))
        return events

    def finish_reason(self, output: ChoiceOutput) -> str | None:
        """That of a delta: "tool_calls" if the choice ended by itself after at least one call, all of them whole."""
        calls = self.messages[output.index].calls
        if output.finish_reason != "stop" or not self._parsing.reports_tool_calls or not calls:
            return output.finish_reason
        return "tool_calls" if all(call.is_whole for call in calls) else "stop"

    def _is_wanted(self, event: OutputEvent) -> bool:
        if isinstance(event, ReasoningText):
            return self._parsing.includes_reasoning
        return isinstance(event, ContentText) or self._parsing.has_parallel_calls or event.index == 0

    def _with_id(self, event: OutputEvent) -> OutputEvent:
        if not isinstance(event, ToolCallBegin) or event.call_id is not None:
            return event
        return replace(event, call_id=self._new_call_id(event))

    def _new_call_id(self, call: ToolCallBegin) -> str:
        match self._parsing.call_ids:
            case "nine_characters":
                return _random_text(9)
            case "function_index":
                return f"functions.{call.name}:{self._parsing.num_earlier_calls + call.index}"
            case "random":
                return f"{self._call_id_prefix}{_random_text(24)}"


def _random_text(length: int) -> str:
    return "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(length))
