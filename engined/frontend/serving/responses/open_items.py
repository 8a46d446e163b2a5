"""The items of an answer while they grow, each with its events. Frontend process; owned by `output`. Pure."""

from abc import ABC, abstractmethod

from engined.frontend.api import response_events as events
from engined.frontend.api.response_events import ResponseEvent
from engined.frontend.api.response_items import (
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningPart,
    ResponseLogprob,
)
from engined.frontend.serving.responses.items import new_id


class OpenItem(ABC):
    """An item that has begun and not ended. Its events come from `begin`, `add` and `end`, in this order."""

    def __init__(self, output_index: int, id_prefix: str) -> None:
        """`output_index`: its place in the output."""
        self.item_id = new_id(id_prefix)
        self.output_index = output_index
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What it says so far."""
        return "".join(self._pieces)

    @abstractmethod
    def item(self, status: ItemStatus) -> OutputItem:
        """The item as it stands; while it is in progress it is still shown empty."""

    def begin(self) -> list[ResponseEvent]:
        """The events before the first piece."""
        return [events.OutputItemAdded(output_index=self.output_index, item=self.item("in_progress"))]

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """The events behind the last piece."""
        return [events.OutputItemDone(output_index=self.output_index, item=self.item(status))]


class OpenReasoning(OpenItem):
    """What the model thinks."""

    def __init__(self, output_index: int) -> None:
        super().__init__(output_index, "rs")

    def item(self, status: ItemStatus) -> ReasoningItem:
        """The item as it stands."""
        content = [] if status == "in_progress" else [ReasoningPart(text=self.text)]
        return ReasoningItem(id=self.item_id, content=content, status=status)

    def begin(self) -> list[ResponseEvent]:
        """The events before the first piece."""
        part = events.ContentPartAdded(
            item_id=self.item_id, output_index=self.output_index, part=ReasoningPart(text="")
        )
        return [*super().begin(), part]

    def add(self, text: str) -> ResponseEvent:
        """The next piece."""
        self._pieces.append(text)
        return events.ReasoningTextDelta(item_id=self.item_id, output_index=self.output_index, delta=text)

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """The events behind the last piece."""
        text = self.text
        return [
            events.ReasoningTextDone(item_id=self.item_id, output_index=self.output_index, text=text),
            events.ContentPartDone(item_id=self.item_id, output_index=self.output_index, part=ReasoningPart(text=text)),
            *super().end(status),
        ]


class OpenMessage(OpenItem):
    """What the model says."""

    def __init__(self, output_index: int) -> None:
        super().__init__(output_index, "msg")
        self._logprobs: list[ResponseLogprob] = []

    def item(self, status: ItemStatus) -> MessageItem:
        """The item as it stands."""
        content = [] if status == "in_progress" else [self._part()]
        return MessageItem(id=self.item_id, role="assistant", status=status, content=[*content])

    def begin(self) -> list[ResponseEvent]:
        """The events before the first piece."""
        part = events.ContentPartAdded(item_id=self.item_id, output_index=self.output_index, part=OutputText(text=""))
        return [*super().begin(), part]

    def add(self, text: str, logprobs: list[ResponseLogprob]) -> ResponseEvent:
        """The next piece, and the log-probabilities that come with it."""
        self._pieces.append(text)
        self._logprobs += logprobs
        return events.OutputTextDelta(
            item_id=self.item_id, output_index=self.output_index, delta=text, logprobs=logprobs
        )

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """The events behind the last piece."""
        part = self._part()
        return [
            events.OutputTextDone(
                item_id=self.item_id, output_index=self.output_index, text=part.text, logprobs=part.logprobs
            ),
            events.ContentPartDone(item_id=self.item_id, output_index=self.output_index, part=part),
            *super().end(status),
        ]

    def _part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=self._logprobs)


class OpenCall(OpenItem):
    """A tool that the model calls. Unless it `is_whole`, it ends incomplete, whatever status is given."""

    def __init__(self, output_index: int, call_id: str, name: str) -> None:
        super().__init__(output_index, "fc")
        self.is_whole = False
        self._call_id = call_id
        self._name = name

    def item(self, status: ItemStatus) -> FunctionCallItem:
        """The item as it stands."""
        arguments = "" if status == "in_progress" else self.text
        if status == "completed" and not self.is_whole:
            status = "incomplete"
        return FunctionCallItem(
            id=self.item_id, call_id=self._call_id, name=self._name, arguments=arguments, status=status
        )

    def add(self, text: str) -> ResponseEvent:
        """The next piece of the arguments."""
        self._pieces.append(text)
        return events.FunctionCallArgumentsDelta(item_id=self.item_id, output_index=self.output_index, delta=text)

    def end(self, status: ItemStatus) -> list[ResponseEvent]:
        """The events behind the last piece."""
        done = events.FunctionCallArgumentsDone(
            item_id=self.item_id, output_index=self.output_index, name=self._name, arguments=self.text
        )
        return [done, *super().end(status)]
