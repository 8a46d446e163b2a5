"""`engined chat`: a conversation in the terminal. With a pipe for stdin each line is a turn."""

import contextlib
import readline
import sys
from collections.abc import Generator
from typing import Any

import click

from engined.cli.client_options import client_options, generation_fields, make_client
from engined.client import Client, ClientError

_HELP = "/clear forgets the conversation, /system TEXT sets the instructions, /exit or Ctrl-D leaves."


class Conversation:
    """The messages so far, and the server that answers them."""

    def __init__(self, client: Client, fields: dict[str, Any]) -> None:
        self._client = client
        self._fields = fields
        self._system: str | None = None
        self._turns: list[dict[str, Any]] = []

    def clear(self) -> None:
        """Forget all turns; the instructions stay."""
        self._turns = []

    def set_system(self, text: str) -> None:
        """Set the instructions; an empty text removes them."""
        self._system = text or None

    def ask(self, text: str) -> Generator[str, None, None]:
        """Send one turn; yields the answer in pieces.

        A turn that is cut short (the iterator is closed, or Ctrl-C comes) keeps what was said; one that fails is
        forgotten. Raises ClientError.
        """
        question = {"role": "user", "content": text}
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        answer: list[str] = []
        try:
            for chunk in self._client.chat([*system, *self._turns, question], stream=True, **self._fields):
                for choice in chunk.get("choices", ()):
                    if piece := choice.get("delta", {}).get("content"):
                        answer.append(piece)
                        yield piece
        finally:
            if answer:
                self._turns += [question, {"role": "assistant", "content": "".join(answer)}]


@click.command("chat")
@client_options
def command(
    url: str | None,
    uds: str | None,
    api_key: str | None,
    model: str | None,
    temperature: float | None,
    max_tokens: int | None,
) -> int:
    """Chat with the server. Ctrl-C stops an answer, Ctrl-D leaves.

    /clear forgets the conversation, /system TEXT sets the instructions, /exit leaves. With a pipe for stdin each line
    is a turn.
    """
    client = make_client(url, uds, api_key, model)
    conversation = Conversation(client, generation_fields(temperature, max_tokens))
    if sys.stdin.isatty():
        client.health()
        click.echo(_HELP)
        return _chat_in_terminal(conversation)
    return _chat_in_pipe(conversation)


def _chat_in_terminal(conversation: Conversation) -> int:
    readline.set_auto_history(True)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            click.echo()
            return 0
        except KeyboardInterrupt:
            click.echo()
            continue
        if text == "/exit":
            return 0
        try:
            _take_line(conversation, text)
        except KeyboardInterrupt:
            click.echo(" [stopped]")
        except ClientError as error:
            click.echo(f"error: {error}", err=True)


def _chat_in_pipe(conversation: Conversation) -> int:
    for line in sys.stdin:
        text = line.strip()
        if text == "/exit":
            break
        _take_line(conversation, text)
    return 0


def _take_line(conversation: Conversation, text: str) -> None:
    """Do a command, or ask and print the answer as it comes."""
    name, _, rest = text.partition(" ")
    if not text:
        return
    if name == "/clear":
        conversation.clear()
    elif name == "/system":
        conversation.set_system(rest.strip())
    elif name.startswith("/") and name[1:].isalpha():
        click.echo(f"no command {name}. {_HELP}", err=True)
    else:
        with contextlib.closing(conversation.ask(text)) as pieces:
            for piece in pieces:
                click.echo(piece, nl=False)
        click.echo()
