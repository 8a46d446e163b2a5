"""The model's chat template: messages in, prompt pieces out. Frontend process; runs in the renderer's threads.

Text of users must never become control tokens; see `special_literals`.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jinja2
from jinja2 import meta

from engined.errors import ConfigError, RequestError
from engined.frontend.parsing.format import CallSyntax
from engined.frontend.rendering.messages import Message, content_text, content_texts
from engined.frontend.rendering.special_literals import SpecialLiterals, free_characters
from engined.frontend.rendering.template_environment import ChatTemplateEnvironment, read_names
from engined.frontend.rendering.tool_prompt import JSON_SYNTAX, ToolPrompt

logger = logging.getLogger(__name__)

MAX_OUTPUT_CHARACTERS = 16 << 20
RESERVED_VARIABLES = frozenset(("messages", "tools", "documents", "add_generation_prompt", "chat_template"))
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""What templates call the reasoning of an earlier answer."""
_PROBE = "engined-probe"
_PROBED_CALL: tuple[Message, ...] = (
    {"role": "user", "content": "?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                # Nine letters and digits, which is what Mistral's templates insist on.
                "id": "engined01",
                "type": "function",
                "function": {"name": "probed_call", "arguments": '{"probed_key": "probed-value"}'},
            }
        ],
    },
    {"role": "tool", "content": "probed result", "tool_call_id": "engined01"},
)
_PROBED_TOOL = {
    "type": "function",
    "function": {"name": "engined", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_PROBED_TEXTS = ("probed_call", "probed_key", "probed-value", "probed result")
_SIGNS_OF_QUOTING = ('\\"probed_key', "'probed_key'")
"""A text that was quoted again as JSON, and a dict that was printed as Python's."""

Tools = Sequence[dict[str, Any]]
"""As OpenAI has them: {"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How one conversation is rendered."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Tools = ()
    """What the model is told that it may call."""
    template_kwargs: dict[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallStyle:
    """How a template wants the calls of earlier answers."""

    arguments: Literal["object", "text"]
    content: Literal["empty", "null"]
    """What stands for the content of an answer that calls."""


_CALL_STYLES = (
    _CallStyle(arguments="object", content="empty"),
    _CallStyle(arguments="text", content="empty"),
    _CallStyle(arguments="object", content="null"),
    _CallStyle(arguments="text", content="null"),
)
"""The first that a template shows is taken."""


class ChatTemplate:
    """A compiled template. Thread-safe."""

    def __init__(
        self,
        source: str,
        special_tokens: Sequence[str],
        named_tokens: Mapping[str, str],
        call_syntax: CallSyntax = JSON_SYNTAX,
    ) -> None:
        """Compile and probe the template. Raises ConfigError if it is not valid jinja.

        `special_tokens` are the literals that user text must not produce; `named_tokens` are variables such as
        `bos_token`; `call_syntax` is what the model is told to write if the template does not show tools.
        """
        environment = ChatTemplateEnvironment()
        try:
            self._template = environment.from_string(source)
            syntax_tree = environment.parse(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"chat template: {error}; give a valid one with --chat-template") from error
        variables = meta.find_undeclared_variables(syntax_tree)
        self._named_tokens = named_tokens
        self.variables = frozenset(variables) - RESERVED_VARIABLES - named_tokens.keys() - environment.globals.keys()
        """What a request may set with chat_template_kwargs."""
        self._knows_developer = "developer" in source
        self._literals = SpecialLiterals(special_tokens)
        names = read_names(syntax_tree)
        self._reasoning_key = next((key for key in REASONING_KEYS if key in names), None)
        self.wants_parts = self._probe_wants_parts()
        self.shows_tools = "tools" in variables
        self._call_style = next(filter(self._shows_calls, _CALL_STYLES), None)
        self._tool_prompt = ToolPrompt(syntax=call_syntax, has_system_role=self._probe_system_role())

    def render(self, messages: Sequence[Message], options: ChatOptions) -> list[str]:
        """The prompt, in pieces that are to be tokenized separately (usually one).

        Raises RequestError with code "chat_template_error" if the template refuses the conversation.
        """
        if self._call_style is None:
            messages = self._tool_prompt.spell_out(messages)
        if options.tools and not self.shows_tools:
            messages = self._tool_prompt.describe(messages, options.tools)
        cut, end = free_characters([messages, options.tools], 2)
        prepared = [self._prepare(message, cut, self._call_style) for message in messages]
        if options.continue_final_message:
            prepared[-1]["content"] = _append_text(prepared[-1]["content"] or "", end)
        text = self._render(prepared, options, self._literals.cut(list(options.tools), cut) or None)
        if options.continue_final_message:
            position = text.rfind(end)
            if position < 0:
                raise RequestError(
                    "continue_final_message: the chat template does not show the text of the last message",
                    param="continue_final_message",
                    code="chat_template_error",
                )
            text = text[:position]
        return text.split(cut)

    def _prepare(self, message: Message, cut: str, style: _CallStyle | None) -> Message:
        """The message as the template wants it: its content format, its role, its literals cut."""
        prepared = dict(message)
        if prepared["role"] == "developer" and not self._knows_developer:
            prepared["role"] = "system"
        reasoning = prepared.pop("reasoning_content", None)
        if reasoning is not None and self._reasoning_key is not None:
            prepared[self._reasoning_key] = reasoning
        if self.wants_parts:
            prepared["content"] = [{"type": "text", "text": text} for text in content_texts(message["content"])]
        else:
            prepared["content"] = content_text(message)
        if "tool_calls" in prepared and style is not None:
            if style.content == "null":
                prepared["content"] = None
            if style.arguments == "object":
                prepared["tool_calls"] = [_with_object(call) for call in prepared["tool_calls"]]
        return {key: self._literals.cut(value, cut) for key, value in prepared.items()}

    def _render(self, messages: list[Message], options: ChatOptions, tools: Tools | None = None) -> str:
        variables = {
            **self._named_tokens,
            **options.template_kwargs,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": options.add_generation_prompt,
        }
        pieces, length = [], 0
        try:
            for piece in self._template.generate(variables):
                length += len(piece)
                if length > MAX_OUTPUT_CHARACTERS:
                    raise jinja2.TemplateError("the prompt is too long")
                pieces.append(piece)
        except Exception as error:  # a template is a program: it may fail in any way
            logger.debug("the chat template failed", exc_info=True)
            reason = str(error) if isinstance(error, jinja2.TemplateError) else type(error).__name__
            raise RequestError(
                f"the chat template refuses these messages: {reason[:500]}",
                param="messages",
                code="chat_template_error",
            ) from error
        return "".join(pieces)

    def _probe_wants_parts(self) -> bool:
        """Whether the template shows content that is a list of parts, but not content that is a string."""
        parts = [{"type": "text", "text": _PROBE}]
        return not self._shows(_PROBE) and self._shows(parts)

    def _shows(self, content: str | list[dict[str, str]]) -> bool:
        text = self._try([{"role": "user", "content": content}])
        return _PROBE in text and "'type'" not in text

    def _probe_system_role(self) -> bool:
        messages = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "?"}]
        return _PROBE in self._try([self._prepare(message, "", None) for message in messages])

    def _shows_calls(self, style: _CallStyle) -> bool:
        """Whether a call, its arguments and its result can be seen in the prompt, none of them quoted twice."""
        messages = [self._prepare(message, "", style) for message in _PROBED_CALL]
        text = self._try(messages, [_PROBED_TOOL] if self.shows_tools else None)
        return all(shown in text for shown in _PROBED_TEXTS) and not any(sign in text for sign in _SIGNS_OF_QUOTING)

    def _try(self, messages: list[Message], tools: Tools | None = None) -> str:
        """The prompt, or nothing if the template refuses."""
        try:
            return self._render(messages, ChatOptions(), tools)
        except RequestError:
            return ""


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}


def _append_text(content: str | list[dict[str, str]], text: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content + text
    last = content[-1]
    return [*content[:-1], {**last, "text": last["text"] + text}]
