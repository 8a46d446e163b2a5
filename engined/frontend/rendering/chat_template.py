"""The model's chat template: messages in, prompt pieces out. Frontend process; runs in the renderer's threads.

Text of users must never become control tokens. Where a message spells one (`<|im_end|>`), a private character is put
into the literal before rendering, and the rendered text is cut there: tokenized one by one, the pieces hold no literal.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
from jinja2 import meta

from engined.errors import ConfigError, RequestError
from engined.frontend.rendering.template_environment import ChatTemplateEnvironment

logger = logging.getLogger(__name__)

MAX_OUTPUT_CHARACTERS = 16 << 20
PRIVATE_CHARACTERS = "".join(map(chr, (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))))
"""Unicode non-characters first: they have no use in text, so the first two are nearly always free."""
RESERVED_VARIABLES = frozenset(("messages", "tools", "documents", "add_generation_prompt", "chat_template"))
_PROBE = "engined-probe"

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How one conversation is rendered."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, str | int | float | bool | None] = field(default_factory=dict)


class ChatTemplate:
    """A compiled template. Thread-safe."""

    def __init__(self, source: str, special_tokens: Sequence[str], named_tokens: dict[str, str]) -> None:
        """Compile and probe the template. Raises ConfigError if it is not valid jinja.

        `special_tokens` are the literals that user text must not produce; `named_tokens` are variables such as
        `bos_token`.
        """
        environment = ChatTemplateEnvironment()
        try:
            self._template = environment.from_string(source)
            variables = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ConfigError(f"chat template: {error}; give a valid one with --chat-template") from error
        self._named_tokens = named_tokens
        self.variables = frozenset(variables) - RESERVED_VARIABLES - named_tokens.keys() - environment.globals.keys()
        """What a request may set with chat_template_kwargs."""
        self._knows_developer = "developer" in source
        literals = sorted((token for token in special_tokens if len(token) > 1), key=len, reverse=True)
        self._special_literal = re.compile("|".join(map(re.escape, literals))) if literals else None
        self.wants_parts = self._probe_wants_parts()

    def render(self, messages: Sequence[Message], options: ChatOptions) -> list[str]:
        """The prompt, in pieces that are to be tokenized separately (usually one).

        Raises RequestError with code "chat_template_error" if the template refuses the conversation.
        """
        cut, end = self._private_characters(messages)
        prepared = [self._prepare(message, cut) for message in messages]
        if options.continue_final_message:
            prepared[-1]["content"] = _append_text(prepared[-1]["content"], end)
        text = self._render(prepared, options)
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

    def _prepare(self, message: Message, cut: str) -> Message:
        """The message as the template wants it: its content format, its role, its literals cut."""
        prepared = dict(message)
        if prepared["role"] == "developer" and not self._knows_developer:
            prepared["role"] = "system"
        texts = [self._cut_literals(text, cut) for text in content_texts(message["content"])]
        if self.wants_parts:
            prepared["content"] = [{"type": "text", "text": text} for text in texts]
        else:
            prepared["content"] = "\n".join(texts)
        if "name" in prepared:
            prepared["name"] = self._cut_literals(prepared["name"], cut)
        return prepared

    def _cut_literals(self, text: str, cut: str) -> str:
        """Put `cut` behind the first character of every special literal, also of those that overlap."""
        if self._special_literal is None:
            return text
        while self._special_literal.search(text) is not None:
            text = self._special_literal.sub(lambda match: match[0][0] + cut + match[0][1:], text)
        return text

    def _private_characters(self, messages: Sequence[Message]) -> tuple[str, str]:
        used: set[str] = set()
        for message in messages:
            used.update(*content_texts(message["content"]), message.get("name", ""))
        free = [character for character in PRIVATE_CHARACTERS[: len(used) + 2] if character not in used]
        if len(free) < 2:
            raise RequestError("messages use up the private characters of Unicode", param="messages")
        return free[0], free[1]

    def _render(self, messages: list[Message], options: ChatOptions) -> str:
        variables = {
            **self._named_tokens,
            **options.template_kwargs,
            "messages": messages,
            "tools": None,
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
        try:
            text = self._render([{"role": "user", "content": content}], ChatOptions())
        except RequestError:
            return False
        return _PROBE in text and "'type'" not in text


def content_texts(content: str | Iterable[dict[str, str]] | None) -> list[str]:
    """The texts of a message's content, whichever of its forms it has."""
    if content is None:
        return [""]
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content]


def _append_text(content: str | list[dict[str, str]], text: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content + text
    last = content[-1]
    return [*content[:-1], {**last, "text": last["text"] + text}]
