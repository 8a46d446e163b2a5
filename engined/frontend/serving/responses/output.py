"""The output of a response: what a parser finds, as items and as events. Frontend process; owned by the formatter.

A state machine with one open item at most: it ends where something of another kind begins.
"""

from collections.abc import Iterable
from typing import TypeVar

from engined.frontend.api.response_events import ResponseEvent
from engined.frontend.api.response_items import ItemStatus, OutputItem, ResponseLogprob
from engined.frontend.parsing.events import (
    ContentText,
    OutputEvent,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from engined.frontend.serving.responses.open_items import OpenCall, OpenItem, OpenMessage, OpenReasoning

Growing = TypeVar("Growing", OpenReasoning, OpenMessage)


class ResponseOutput:
    """Owns the items, in the order in which the model wrote them."""

    def __init__(self) -> None:
        self._ended: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._logprobs: list[ResponseLogprob] = []

    def items(self, status: ItemStatus) -> list[OutputItem]:
        """All items so far; the open one gets `status`."""
        return self._ended if self._open is None else [*self._ended, self._open.item(status)]

    def take(self, found: Iterable[OutputEvent], logprobs: list[ResponseLogprob]) -> list[ResponseEvent]:
        """What comes next. Log-probabilities wait for text of a message to go with."""
        self._logprobs += logprobs
        events = [event for one in found for event in self._take(one)]
        if isinstance(self._open, OpenMessage) and self._logprobs:
            events.append(self._open.add("", self._take_logprobs()))
        return events

    def finish(self, status: ItemStatus) -> list[ResponseEvent]:
        """The answer is over, completed or not. One that says nothing at all is an empty message."""
        events: list[ResponseEvent] = []
        if self._open is None and not self._ended:
            events += self._begin(OpenMessage(0))
            events += self.take((), [])
        return events + self._end(status)

    def _take(self, found: OutputEvent) -> list[ResponseEvent]:
        match found:
            case ReasoningText(text):
                events, reasoning = self._continue(OpenReasoning)
                return [*events, reasoning.add(text)]
            case ContentText(text):
                events, message = self._continue(OpenMessage)
                return [*events, message.add(text, self._take_logprobs())]
            case ToolCallBegin(name=name, call_id=call_id):
                return self._begin(OpenCall(self._next_index, call_id or "", name))
            case ToolCallArguments(text=text):
                assert isinstance(self._open, OpenCall)
                return [self._open.add(text)]
            case ToolCallEnd():
                assert isinstance(self._open, OpenCall)
                self._open.is_whole = True
                return self._end("completed")

    @property
    def _next_index(self) -> int:
        return len(self._ended) + (self._open is not None)

    def _continue(self, kind: type[Growing]) -> tuple[list[ResponseEvent], Growing]:
        """The open item if it is of this kind, else a new one."""
        if isinstance(self._open, kind):
            return [], self._open
        item = kind(self._next_index)
        return self._begin(item), item

    def _begin(self, item: OpenItem) -> list[ResponseEvent]:
        events = self._end("completed")
        self._open = item
        return events + item.begin()

    def _end(self, status: ItemStatus) -> list[ResponseEvent]:
        item, self._open = self._open, None
        if item is None:
            return []
        self._ended.append(item.item(status))
        return item.end(status)

    def _take_logprobs(self) -> list[ResponseLogprob]:
        logprobs, self._logprobs = self._logprobs, []
        return logprobs
