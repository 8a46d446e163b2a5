"""Reasoning before the answer, split off; the rest goes to the parser of the answer. Frontend process."""

from engined.frontend.parsing.events import ReasoningText
from engined.frontend.parsing.format import ReasoningFormat
from engined.frontend.parsing.parser import OutputParser
from engined.frontend.parsing.state_parser import StateParser
from engined.frontend.parsing.text_pieces import MarkerSearch, TrailingWhitespace, skip_whitespace

_LINE_FEED = "\n"


class ReasoningSplitter(StateParser):
    """One block of reasoning, at the beginning or nowhere: tags in the midst of the answer are the answer's own.

    Line feeds between the tags and the text on both their sides belong to the tags. All else is kept as it is.
    """

    def __init__(
        self, reasoning: ReasoningFormat, answer: OutputParser, *, is_open: bool, begin_of_calls: str | None = None
    ) -> None:
        """`is_open`: the prompt has begun the block. `begin_of_calls` ends it as well, and belongs to the answer."""
        super().__init__(self._read_opening)
        self._answer = answer
        self._is_open = is_open
        self._begin = MarkerSearch(reasoning.begin)
        self._end = MarkerSearch(reasoning.end, *([begin_of_calls] if begin_of_calls is not None else []))
        self._begin_of_calls = begin_of_calls
        self._prefixes = MarkerSearch(*filter(None, (reasoning.separator.strip(), reasoning.content_prefix)))
        self._held: list[str] = []
        self._trailing = TrailingWhitespace(_LINE_FEED)
        self._has_text = False

    def _read_opening(self, text: str, position: int) -> int:
        end = skip_whitespace(text, position)
        self._held.append(text[position:end])
        if end == len(text):
            return end
        is_possible, marker = self._begin.match(text, end)
        if is_possible and marker is None:
            return self._keep_pending(text, end)
        if marker is not None:
            self._state = self._read_reasoning
            return end + len(marker)
        self._give_held()
        self._state = self._read_reasoning if self._is_open else self._read_prefixes
        return end

    def _read_reasoning(self, text: str, position: int) -> int:
        start, marker = self._end.search(text, position)
        self._give_reasoning(text[position:start])
        if marker is None:
            return self._keep_pending(text, start)
        if marker == self._begin_of_calls:
            self._state = self._read_answer
            return start
        self._state = self._read_line_feeds
        return start + len(marker)

    def _read_line_feeds(self, text: str, position: int) -> int:
        while position < len(text) and text[position] == _LINE_FEED:
            position += 1
        if position < len(text):
            self._state = self._read_prefixes
        return position

    def _read_prefixes(self, text: str, position: int) -> int:
        is_possible, marker = self._prefixes.match(text, position)
        if is_possible and marker is None:
            return self._keep_pending(text, position)
        if marker is None:
            self._state = self._read_answer
            return position
        return position + len(marker)

    def _read_answer(self, text: str, position: int) -> int:
        self._events += self._answer.feed(text[position:])
        return len(text)

    def _give_held(self) -> None:
        held = "".join(self._held)
        if self._is_open:
            self._give_reasoning(held)
        else:
            self._events += self._answer.feed(held)

    def _give_reasoning(self, text: str) -> None:
        text = self._trailing.let_through(text if self._has_text else text.lstrip(_LINE_FEED))
        if text:
            self._has_text = True
            self._events.append(ReasoningText(text))

    def _end_of_text(self) -> None:
        if self._state == self._read_opening:
            self._give_held()
        if self._state == self._read_reasoning or (self._state == self._read_opening and self._is_open):
            self._give_reasoning(self._pending)
        else:
            self._events += self._answer.feed(self._pending)
        self._events += self._answer.finish()
