"""Conversations on their way to the chat template. Frontend process; pure.

A message is a dict, as templates read it: `role`; `content`, a text or a list of text parts; and where it has them
`name`, `reasoning_content`, `tool_calls` (as in OpenAI's API; `arguments` is the text of a JSON object) and
`tool_call_id`.
"""

from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]


def content_texts(content: str | Iterable[dict[str, str]] | None) -> list[str]:
    """The texts of a message's content, whichever of its forms it has."""
    if content is None:
        return [""]
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content]


def content_text(message: Message) -> str:
    """The whole content; each part is a paragraph."""
    return "\n".join(content_texts(message["content"]))


def called_name(messages: Iterable[Message], tool_call_id: str) -> str:
    """The name of the tool that the call of this id called; the latest, if several calls have it."""
    names = [
        call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls", ())
        if call["id"] == tool_call_id
    ]
    return names[-1] if names else "function"
