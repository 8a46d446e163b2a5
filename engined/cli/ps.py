"""`engined ps`."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
import orjson

from engined.cli.client_options import connection_options, make_operator_client
from engined.cli.text import format_seconds, format_table

_COLUMNS = ("ID", "KEY", "ENDPOINT", "STATE", "POS", "TOKENS", "AGE")
_KEY_COLUMN = 1
_MAX_WIDTH = 100
_MIN_KEY_WIDTH = 4


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print all that the server tells, as JSON.")
@connection_options
def command(as_json: bool, url: str | None, uds: str | None, api_key: str | None) -> int:
    """List the requests that are under way, the oldest first.

    POS is the place in the queue; TOKENS are those of the prompt and those generated so far. With API keys it takes
    one that has the scope admin.
    """
    requests = make_operator_client(url, uds, api_key).requests()
    if as_json:
        click.echo(orjson.dumps(requests, option=orjson.OPT_INDENT_2))
    else:
        click.echo(_table(requests))
    return 0


def _table(requests: Sequence[Mapping[str, Any]]) -> str:
    rows = [_COLUMNS, *map(_row, requests)]
    return format_table(rows, flexible=_KEY_COLUMN, min_width=_MIN_KEY_WIDTH, max_width=_MAX_WIDTH, right=(4, 5, 6))


def _row(request: Mapping[str, Any]) -> tuple[str, ...]:
    position = request["position"]
    return (
        request["id"],
        request["key"] or "-",
        request["endpoint"].removeprefix("/v1").removeprefix("/"),
        request["state"],
        "-" if position is None else str(position),
        f"{request['prompt_tokens']}+{request['generated_tokens']}",
        format_seconds(request["age_s"]),
    )
