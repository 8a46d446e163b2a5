"""Content in the midst of which markers begin calls. Frontend process; base of the parsers of such families."""

from abc import abstractmethod

from engined.frontend.parsing.state_parser import State, StateParser
from engined.frontend.parsing.text_pieces import MarkerSearch, TrailingWhitespace, skip_whitespace


class MarkedCallsParser(StateParser):
    """Reads content up to a marker, and again from behind a call. The family adds the states between.

    Whitespace behind a call is content only if more content follows. A call that breaks before its arguments have begun
    is content with its marker; one that is cut off there is nothing.
    """

    def __init__(self, *, begins: tuple[str, ...], ends: tuple[str, ...] = (), swallowed_before: str = "") -> None:
        """One of `begins` begins a call, behind characters of `swallowed_before`; one of `ends` may stand behind it."""
        super().__init__(self._read_content)
        self._begins = MarkerSearch(*begins)
        self._begins_and_ends = MarkerSearch(*begins, *ends)
        self._ends = ends
        self._trailing = TrailingWhitespace(swallowed_before)
        self._unclaimed: list[str] = []
        self._num_calls = 0

    @abstractmethod
    def _begin_call(self) -> State:
        """A marker was found. What reads on from there."""

    def _read_content(self, text: str, position: int) -> int:
        start, marker = self._begins.search(text, position)
        self._give_content(self._trailing.let_through(text[position:start]))
        if marker is None:
            return self._keep_pending(text, start)
        self._unclaimed = [self._trailing.release(), marker]
        self._state = self._begin_call()
        return start + len(marker)

    def _read_after_call(self, text: str, position: int) -> int:
        end = skip_whitespace(text, position)
        self._unclaimed.append(text[position:end])
        if end == len(text):
            return end
        is_possible, marker = self._begins_and_ends.match(text, end)
        if is_possible and marker is None:
            return self._keep_pending(text, end)
        if marker is None:
            self._give_up_call()
            return end
        if marker in self._ends:
            self._unclaimed = []
        else:
            self._unclaimed.append(marker)
            self._state = self._begin_call()
        return end + len(marker)

    def _claim(self) -> None:
        """A call has begun: what was read for it is no content."""
        self._unclaimed = []

    def _end_call(self) -> None:
        self._unclaimed = []
        self._state = self._read_after_call

    def _give_up_call(self) -> None:
        """It is no call: what was read for it is content, and so is what follows."""
        self._give_content(self._trailing.let_through("".join(self._unclaimed)))
        self._unclaimed = []
        self._state = self._read_content

    def _end_of_text(self) -> None:
        if self._state == self._read_content:
            self._give_content(self._trailing.release() + self._pending)
        elif self._state == self._read_after_call and self._pending and not self._is_cut_end():
            self._give_content("".join(self._unclaimed) + self._pending)

    def _is_cut_end(self) -> bool:
        """Whether the answer was cut off in the marker behind a call."""
        return any(end.startswith(self._pending) for end in self._ends)
