"""How Mistral's models write calls and reasoning. Frontend process.

[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]        until 2024 (tokenizers v3 and before)
[TOOL_CALLS]name[ARGS]{...}[TOOL_CALLS]name[ARGS]{...}       since (v11, v13), at times name[CALL_ID]id[ARGS]
"""

import re

from engined.frontend.parsing.events import ToolCallArguments, ToolCallBegin, ToolCallEnd
from engined.frontend.parsing.format import CallSyntax, ReasoningFormat, ToolFormat
from engined.frontend.parsing.json_scanner import JsonScanner
from engined.frontend.parsing.marked_json_calls import MarkedJsonCallsParser
from engined.frontend.parsing.parser import ParserContext
from engined.frontend.parsing.state_parser import State
from engined.frontend.parsing.text_pieces import MarkerSearch, skip_whitespace

_BEGIN = "[TOOL_CALLS]"
_CALL_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"
_MAX_WORD_LENGTH = 256
_WORD_RUN = re.compile(r"[A-Za-z0-9_.:/-]*")


class MistralParser(MarkedJsonCallsParser):
    """Reads both forms, whichever stands behind a marker."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(begins=(_BEGIN,))
        self._signs = MarkerSearch(_CALL_ID, _ARGUMENTS)
        self._word = ""
        self._name = ""
        self._call_id: str | None = None
        self._scanner = JsonScanner()

    def _begin_call(self) -> State:
        self._word, self._name, self._call_id, self._scanner = "", "", None, JsonScanner()
        return self._read_form

    def _read_form(self, text: str, position: int) -> int:
        end = self._skip(text, position)
        if end < len(text):
            self._state = self._begin_json_calls(bool) if text[end] in "[{" else self._read_word
        return end

    def _read_word(self, text: str, position: int) -> int:
        """The name, or behind it the id of the call."""
        run = _WORD_RUN.match(text, position)
        assert run is not None
        end = min(run.end(), position + _MAX_WORD_LENGTH + 1 - len(self._word))
        self._word += text[position:end]
        self._unclaimed.append(text[position:end])
        if end == len(text):
            return end
        is_possible, marker = self._signs.match(text, end)
        if is_possible and marker is None:
            return self._keep_pending(text, end)
        if not self._word or len(self._word) > _MAX_WORD_LENGTH:
            self._give_up_call()
            return end
        if marker == _CALL_ID and not self._name:
            self._name, self._word = self._word, ""
        elif marker == _ARGUMENTS or (text[end] == "{" and not self._name):
            # The first models of v11 wrote no [ARGS].
            if self._name:
                self._call_id = self._word
            else:
                self._name = self._word
            self._state = self._read_arguments_opening
        else:
            self._give_up_call()
            return end
        self._unclaimed.append(marker or "")
        return end + len(marker or "")

    def _read_arguments_opening(self, text: str, position: int) -> int:
        end = self._skip(text, position)
        if end == len(text):
            return end
        if text[end] == "{":
            self._events.append(ToolCallBegin(self._num_calls, self._name, self._call_id))
            self._claim()
            self._state = self._read_arguments
        else:
            self._give_up_call()
        return end

    def _read_arguments(self, text: str, position: int) -> int:
        end = self._scanner.read(text, position)
        if end > position:
            self._events.append(ToolCallArguments(self._num_calls, text[position:end]))
        if self._scanner.status == "open":
            return end
        if self._scanner.status == "whole":
            self._events.append(ToolCallEnd(self._num_calls))
            self._end_call()
        else:
            self._give_up_call()
        self._num_calls += 1
        return end

    def _skip(self, text: str, position: int) -> int:
        end = skip_whitespace(text, position)
        self._unclaimed.append(text[position:end])
        return end


def _is_written_compactly(template: str) -> bool:
    return _BEGIN in template and _ARGUMENTS in template


def _is_written_as_list(template: str) -> bool:
    return _BEGIN in template and _ARGUMENTS not in template


MISTRAL = ToolFormat(
    name="mistral",
    new_parser=MistralParser,
    markers=(_BEGIN, _CALL_ID, _ARGUMENTS),
    is_written_in=_is_written_compactly,
    syntax=CallSyntax(before_name=_BEGIN, before_arguments=_ARGUMENTS, trigger=_BEGIN),
    call_ids="nine_characters",
)

# Read by the same parser: only what a grammar holds the model to differs.
MISTRAL_V3 = ToolFormat(
    name="mistral_v3",
    new_parser=MistralParser,
    markers=(_BEGIN,),
    is_written_in=_is_written_as_list,
    syntax=CallSyntax(
        before_calls=f"{_BEGIN} [",
        before_name='{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}",
        between_calls=", ",
        after_calls="]",
        trigger=_BEGIN,
    ),
    call_ids="nine_characters",
)

MISTRAL_REASONING = ReasoningFormat(
    name="mistral",
    begin="[THINK]",
    end="[/THINK]",
    is_written_in=lambda template: "[THINK]" in template,
)
