"""Calls whose parameters stand one by one between tags. Frontend process; the parser of Qwen 3 Coder and of GLM."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engined.frontend.parsing.events import ToolCallArguments, ToolCallBegin, ToolCallEnd
from engined.frontend.parsing.json_writer import JsonObjectWriter
from engined.frontend.parsing.lookahead import REST, SPACE, Lookahead, Outcome, match_first
from engined.frontend.parsing.marked_json_calls import MarkedJsonCallsParser
from engined.frontend.parsing.parameter_types import has_parameter, parameter_types
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.state_parser import State
from engined.frontend.parsing.tagged_value import TaggedValue
from engined.frontend.parsing.text_pieces import WHITESPACE, skip_whitespace

_JSON_CALL = Lookahead(SPACE, REST, "{")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagSyntax:
    """Which tags a family writes. In no tuple may one piece be the beginning of another.

    A tag that ends a value counts only where what comes behind it fits, since values may speak of tags.
    """

    headers: Mapping[str, tuple[Lookahead, ...]]
    """By the marker of a call: what stands between it and the first parameter, with a group "name"."""
    parameter: Lookahead
    """What begins a parameter, with a group "key"."""
    value_end: str
    value_ends: tuple[Lookahead, ...]
    """The end of a value and what comes behind; `value_end`, the next parameter or the end of the call."""
    unclosed_ends: tuple[Lookahead, ...]
    """What ends a value whose own end is missing."""
    call_ends: tuple[str, ...]
    has_lines: bool
    """A line feed behind the beginning of a value and one before its end are not part of it."""
    unmarked: str | None = None
    """That marker which a model may write by mistake, leaving out the one before it: it counts before the name of a
    tool only."""


class TaggedCallsParser(MarkedJsonCallsParser):
    """A state machine: content, header, parameters and values in turn, content. A call in JSON is read as well."""

    def __init__(self, syntax: TagSyntax, context: ParserContext) -> None:
        super().__init__(begins=tuple(syntax.headers), ends=syntax.call_ends, swallowed_before=WHITESPACE)
        self._syntax = syntax
        self._tools = context.tools
        self._schema: Any = {}
        self._keys: set[str] = set()
        self._object = JsonObjectWriter()
        self._value = TaggedValue(None)
        self._is_broken = False

    def _begin_call(self) -> State:
        return self._read_header

    def _read_header(self, text: str, position: int) -> int:
        marker = self._unclaimed[-1]
        found = match_first((*self._syntax.headers[marker], _JSON_CALL), text, position)
        if found is Outcome.MAYBE:
            return self._keep_pending(text, position)
        is_json_allowed = marker != self._syntax.unmarked
        if not isinstance(found, re.Match) or ("name" not in found.re.groupindex and not is_json_allowed):
            self._give_up_call()
            return position
        if "name" not in found.re.groupindex:
            self._unclaimed.append(text[position : found.start("rest")])
            self._state = super()._begin_call()
            return found.start("rest")
        if not is_json_allowed and found["name"] not in self._tools:
            self._give_up_call()
            return position
        self._claim()
        self._begin_parameters(found["name"])
        return found.start("rest")

    def _begin_parameters(self, name: str) -> None:
        self._events.append(ToolCallBegin(self._num_calls, name))
        self._num_calls += 1
        self._schema = self._tools.get(name, {})
        self._keys, self._object, self._is_broken = set(), JsonObjectWriter(), False
        self._state = self._read_parameter

    def _read_parameter(self, text: str, position: int) -> int:
        """The beginning of the next parameter, or the end of the call; nothing else can stand here."""
        position = skip_whitespace(text, position)
        call_end = next((end for end in self._syntax.call_ends if text.startswith(end, position)), None)
        if call_end is not None:
            self._end_tagged_call()
            return position + len(call_end)
        found = self._syntax.parameter.match(text, position)
        if not isinstance(found, re.Match):
            return self._keep_pending(text, position)
        key = found["key"]
        self._keys.add(key)
        self._give_arguments(self._object.key(key))
        self._value = TaggedValue(parameter_types(self._schema, key))
        self._state = self._read_value_beginning if self._syntax.has_lines else self._read_value
        return found.start("rest")

    def _read_value_beginning(self, text: str, position: int) -> int:
        self._state = self._read_value
        return position + 1 if text[position] == "\n" else position

    def _read_value(self, text: str, position: int) -> int:
        tag = text.find("<", position)
        end = tag if tag >= 0 else len(text)
        has_line_feed = self._syntax.has_lines and end > position and text[end - 1] == "\n"
        if has_line_feed:
            end -= 1
        self._give_arguments(self._value.feed(text[position:end]))
        if tag < 0:
            return self._keep_pending(text, end)
        found = self._match_end(text, tag, has_line_feed)
        if found is Outcome.MAYBE:
            return self._keep_pending(text, end)
        if isinstance(found, re.Match):
            self._close_value()
            return found.start("rest")
        self._give_arguments(self._value.feed(text[end : tag + 1]))
        return tag + 1

    def _match_end(self, text: str, position: int, is_line: bool) -> re.Match[str] | Outcome:
        """The end of the value. A parameter that was given before is no parameter, but what the value speaks of."""
        if self._value.is_in_quotes:
            return Outcome.NO
        found = match_first(self._syntax.value_ends, text, position)
        if found is Outcome.NO:
            found = match_first(self._syntax.unclosed_ends, text, position)
            if isinstance(found, re.Match) and found.re.groupindex.get("key"):
                is_parameter = is_line and has_parameter(self._schema, found["key"])
                found = found if is_parameter else Outcome.NO
        if isinstance(found, re.Match) and found.re.groupindex.get("key") and found["key"] in self._keys:
            return Outcome.NO
        return found

    def _close_value(self) -> None:
        self._give_arguments(self._value.close())
        self._is_broken = self._is_broken or self._value.is_broken
        self._state = self._read_parameter

    def _end_tagged_call(self) -> None:
        self._give_arguments(self._object.end())
        if not self._is_broken:
            self._events.append(ToolCallEnd(self._num_calls - 1))
        self._end_call()

    def _give_arguments(self, text: str) -> None:
        # Behind a value that broke off nothing can make the arguments whole.
        if text and not self._is_broken:
            self._events.append(ToolCallArguments(self._num_calls - 1, text))

    def _end_of_text(self) -> None:
        if self._state == self._read_value:
            pending, self._pending = self._pending, ""
            self._end_of_value(pending.lstrip("\n"))
        super()._end_of_text()

    def _end_of_value(self, pending: str) -> None:
        """The text ends within a value, or behind it, where only its end was awaited."""
        is_closed = pending.startswith(self._syntax.value_end)
        rest = pending.removeprefix(self._syntax.value_end).lstrip()
        is_call_whole = rest.startswith(self._syntax.call_ends)
        if is_closed or is_call_whole:
            self._close_value()
        else:
            self._give_arguments(self._value.cut())
        if is_call_whole:
            self._end_tagged_call()
