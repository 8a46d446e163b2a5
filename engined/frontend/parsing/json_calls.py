"""Calls as bare JSON at the beginning of the content: the format of models that were taught none. Frontend process."""

from engined.frontend.parsing.format import CallSyntax, ToolFormat
from engined.frontend.parsing.marked_json_calls import MarkedJsonCallsParser
from engined.frontend.parsing.parser import OutputParser, ParserContext
from engined.frontend.parsing.state_parser import State
from engined.frontend.parsing.text_pieces import MarkerSearch, skip_whitespace

_FENCE = "```"
_FENCES = ("```json", _FENCE)


class PlacedJsonCallsParser(MarkedJsonCallsParser):
    """An object or a list at the beginning, or right behind another call, is a call, if it names one of the tools."""

    def __init__(
        self,
        context: ParserContext,
        *,
        begins: tuple[str, ...] = (),
        ends: tuple[str, ...] = (),
        may_be_fenced: bool = False,
    ) -> None:
        """One of `begins` begins a call anywhere; one of `ends` may stand behind it. `may_be_fenced`: the JSON at the
        beginning may stand in a block of Markdown code."""
        super().__init__(begins=begins, ends=(*ends, _FENCE) if may_be_fenced else ends)
        self._tools = context.tools
        self._openings = MarkerSearch(*begins, *(_FENCES if may_be_fenced else ()))
        self._is_marked = False
        self._state = self._read_opening

    def _begin_call(self) -> State:
        self._is_marked = True
        return super()._begin_call()

    def _begin_bare_call(self) -> State:
        self._is_marked = False
        return self._begin_json_calls(self._tools.__contains__)

    def _read_opening(self, text: str, position: int) -> int:
        end = skip_whitespace(text, position)
        self._unclaimed.append(text[position:end])
        if end == len(text):
            return end
        is_possible, marker = self._openings.match(text, end)
        if is_possible and marker is None:
            return self._keep_pending(text, end)
        if marker is not None:
            self._unclaimed.append(marker)
            self._state = self._begin_bare_call() if marker in _FENCES else self._begin_call()
            return end + len(marker)
        return self._begin_or_give_up(text, end)

    def _read_after_call(self, text: str, position: int) -> int:
        end = skip_whitespace(text, position)
        if end == position and text[position] in ",;":
            end += 1
        if end > position:
            self._unclaimed.append(text[position:end])
            return end
        if text[position] in "{[":
            return self._begin_or_give_up(text, position)
        return super()._read_after_call(text, position)

    def _begin_or_give_up(self, text: str, position: int) -> int:
        if text[position] in "{[":
            self._state = self._begin_bare_call()
        else:
            self._give_up_call()
        return position

    def _end_of_text(self) -> None:
        is_bare_call = self._state == self._read_json_calls and not self._is_marked
        if is_bare_call:
            self._unclaimed.append(self._calls.text)
        if is_bare_call or self._state == self._read_opening:
            self._give_content("".join(self._unclaimed) + self._pending)
        super()._end_of_text()


def _new_parser(context: ParserContext) -> OutputParser:
    return PlacedJsonCallsParser(context, may_be_fenced=True)


JSON = ToolFormat(
    name="json",
    new_parser=_new_parser,
    markers=(),
    is_written_in=lambda template: False,
    syntax=CallSyntax(
        before_calls="[",
        before_name='{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}",
        between_calls=", ",
        after_calls="]",
    ),
)
