"""Tools for models whose chat templates know none: described in the system message, called and answered in plain
messages. Frontend process; used by `chat_template`. Pure.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engined.frontend.parsing.format import CallSyntax, TaggedArguments
from engined.frontend.rendering.messages import Message, called_name, content_text

_INSTRUCTIONS = """\
You may call functions. Each line describes one:
{tools}

To call a function, answer with the call and nothing else, in exactly this form:
{example}
The user then sends what the function returned. Where no function is needed, answer the user as usual."""
JSON_SYNTAX = CallSyntax(before_name='{"name": "', before_arguments='", "arguments": ', after_arguments="}")
_EXAMPLE = ("FUNCTION_NAME", {"PARAMETER_NAME": "VALUE"})

Call = tuple[str, dict[str, Any]]
"""Name and arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPrompt:
    """How tools are told to a model, and calls written, without help of its template."""

    syntax: CallSyntax
    """The form of calls that the parser of the answers reads."""
    has_system_role: bool
    """Whether the template shows system messages; otherwise the tools stand in the first user message."""

    def describe(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
        """The conversation with the tools in front."""
        lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        text = _INSTRUCTIONS.format(tools=lines, example=write_calls(self.syntax, [_EXAMPLE]))
        first = messages[0]
        roles = ("system", "developer") if self.has_system_role else ("user",)
        if first["role"] in roles:
            return [{**first, "content": f"{text}\n\n{content_text(first)}"}, *messages[1:]]
        return [{"role": roles[0], "content": text}, *messages]

    def spell_out(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation with calls as the text that the model wrote, and their results as messages of the user.

        Results, and what the user says right after them, become one message, so that roles go on alternating.
        """
        spelled: list[Message] = []
        may_join = False
        for message in messages:
            is_result = message["role"] == "tool"
            plain = _to_user_message(message, messages) if is_result else self._without_calls(message)
            if spelled and spelled[-1]["role"] == plain["role"] == "user" and (may_join or is_result):
                spelled[-1] = {**spelled[-1], "content": f"{content_text(spelled[-1])}\n\n{content_text(plain)}"}
            else:
                spelled.append(plain)
            may_join = is_result
        return spelled

    def _without_calls(self, message: Message) -> Message:
        calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in _calls_of(message)]
        if not calls:
            return message
        plain = {key: value for key, value in message.items() if key != "tool_calls"}
        said, written = content_text(message), write_calls(self.syntax, calls)
        return {**plain, "content": f"{said}\n{written}" if said else written}


def write_calls(syntax: CallSyntax, calls: Sequence[Call]) -> str:
    """What a model writes to make these calls."""
    written = [
        syntax.before_name
        + name
        + syntax.before_arguments
        + _write_arguments(syntax.tagged, arguments)
        + syntax.after_arguments
        for name, arguments in calls
    ]
    return syntax.before_calls + syntax.between_calls.join(written) + syntax.after_calls


def _write_arguments(tagged: TaggedArguments | None, arguments: dict[str, Any]) -> str:
    if tagged is None:
        return json.dumps(arguments, ensure_ascii=False)
    return "".join(
        tagged.before_key + key + tagged.after_key + _write_value(value) + tagged.after_value
        for key, value in arguments.items()
    )


def _write_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _calls_of(message: Message) -> Sequence[dict[str, Any]]:
    calls: Sequence[dict[str, Any]] = message.get("tool_calls", ())
    return calls


def _to_user_message(message: Message, messages: Sequence[Message]) -> Message:
    name = called_name(messages, message["tool_call_id"])
    return {"role": "user", "content": f"The function {name} returned:\n{content_text(message)}"}
