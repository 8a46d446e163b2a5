"""The frame of parsers that are state machines over text. Frontend process; base of the families' parsers."""

from abc import abstractmethod
from collections.abc import Callable

from engined.frontend.parsing.events import ContentText, OutputEvent
from engined.frontend.parsing.parser import OutputParser

State = Callable[[str, int], int]
"""Reads text from a position, and gives the position where the next state goes on."""


class StateParser(OutputParser):
    """Runs the state of the moment until the text is used up.

    A state takes what it can understand. What may be the beginning of a marker it puts into `_pending`, which is read
    again in front of the next piece; being shorter than a marker, it does not hurt linear time.
    """

    def __init__(self, first_state: State) -> None:
        self._state = first_state
        self._pending = ""
        self._events: list[OutputEvent] = []

    def feed(self, text: str) -> list[OutputEvent]:
        """Let the states read all of it."""
        if not text:
            return []
        text, self._pending = self._pending + text, ""
        position = 0
        while position < len(text):
            position = self._state(text, position)
        return self._take_events()

    def finish(self) -> list[OutputEvent]:
        """Let the state of the moment give out what it held back."""
        self._end_of_text()
        return self._take_events()

    @abstractmethod
    def _end_of_text(self) -> None:
        """Give out what is content, since no marker has come of it."""

    def _keep_pending(self, text: str, position: int) -> int:
        self._pending = text[position:]
        return len(text)

    def _give_content(self, text: str) -> None:
        if text:
            self._events.append(ContentText(text))

    def _take_events(self) -> list[OutputEvent]:
        events, self._events = self._events, []
        return events
