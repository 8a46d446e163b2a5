"""JSON calls behind a marker in the midst of content. Frontend process; base of the parsers of such families."""

from collections.abc import Callable

from engined.frontend.parsing.call_list import CallList
from engined.frontend.parsing.marked_calls import MarkedCallsParser
from engined.frontend.parsing.state_parser import State


class MarkedJsonCallsParser(MarkedCallsParser):
    """Behind a marker stands a call or a list of calls.

    Any name there is a call's, also that of no tool: the marker leaves no doubt what was meant.
    """

    _calls: CallList

    def _begin_call(self) -> State:
        return self._begin_json_calls(bool)

    def _begin_json_calls(self, is_name: Callable[[str], bool]) -> State:
        self._calls = CallList(self._num_calls, is_name)
        return self._read_json_calls

    def _read_json_calls(self, text: str, position: int) -> int:
        position = self._calls.read(text, position, self._events)
        if self._calls.num_calls > self._num_calls:
            self._num_calls = self._calls.num_calls
            self._claim()
        if self._calls.status == "broken":
            self._unclaimed.append(self._calls.text)
            self._give_up_call()
        elif self._calls.status == "whole":
            self._end_call()
        return position
