"""Flags that `chat` and `complete` share: which server, which model, which settings."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from engined.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--url", metavar="URL", help="Server, for example http://127.0.0.1:8000."),
    click.option("--uds", metavar="PATH", help="Unix socket of the server. Default: that of this user's daemon."),
    click.option("--api-key", metavar="KEY", envvar="ENGINED_API_KEY", help="Key to send; also ENGINED_API_KEY."),
    click.option("--model", metavar="NAME", help="Model to ask for. Default: the first that the server lists."),
    click.option("--temperature", type=float, metavar="N", help="0 is greedy. Default: the model's own."),
    click.option("--max-tokens", type=int, metavar="N", help="Most tokens of one answer."),
)


def client_options(command: Command) -> Command:
    """Add the flags; the command gets them as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def make_client(url: str | None, uds: str | None, api_key: str | None, model: str | None) -> Client:
    """The client that the flags describe. Raises ClientError if they contradict each other."""
    return Client(url, uds=uds, api_key=api_key, model=model)


def generation_fields(temperature: float | None, max_tokens: int | None) -> dict[str, Any]:
    """Fields of the request that were set."""
    fields = {"temperature": temperature, "max_tokens": max_tokens}
    return {name: value for name, value in fields.items() if value is not None}
