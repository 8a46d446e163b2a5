"""Flags that the commands which talk to a server share: which server; and for those that generate, which model, which
settings."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from engined.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])

_CONNECTION = (
    click.option("--url", metavar="URL", help="Server, for example http://127.0.0.1:8000."),
    click.option("--uds", metavar="PATH", help="Unix socket of the server. Default: that of this user's daemon."),
    click.option("--api-key", metavar="KEY", envvar="ENGINED_API_KEY", help="Key to send; also ENGINED_API_KEY."),
)
_GENERATION = (
    click.option("--model", metavar="NAME", help="Model to ask for. Default: the first that the server lists."),
    click.option("--temperature", type=float, metavar="N", help="0 is greedy. Default: the model's own."),
    click.option("--max-tokens", type=int, metavar="N", help="Most tokens of one answer."),
)


OPERATOR_TIMEOUT = 10.0
"""Seconds that a server gets to answer an operator, who wants to know above all whether it answers."""


def client_options(command: Command) -> Command:
    """Add all flags; the command gets them as keyword arguments."""
    return _add((*_CONNECTION, *_GENERATION), command)


def connection_options(command: Command) -> Command:
    """Add the flags that say which server."""
    return _add(_CONNECTION, command)


def make_client(url: str | None, uds: str | None, api_key: str | None, model: str | None) -> Client:
    """The client that the flags describe. Raises ClientError if they contradict each other."""
    return Client(url, uds=uds, api_key=api_key, model=model)


def make_operator_client(url: str | None, uds: str | None, api_key: str | None) -> Client:
    """The same for commands that generate nothing, and do not wait for ever."""
    return Client(url, uds=uds, api_key=api_key, timeout=OPERATOR_TIMEOUT)


def _add(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def generation_fields(temperature: float | None, max_tokens: int | None) -> dict[str, Any]:
    """Fields of the request that were set."""
    fields = {"temperature": temperature, "max_tokens": max_tokens}
    return {name: value for name, value in fields.items() if value is not None}
