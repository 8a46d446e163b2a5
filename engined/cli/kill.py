"""`engined kill`."""

import click

from engined.cli.client_options import connection_options, make_operator_client


@click.command("kill")
@click.argument("request_id", metavar="ID")
@connection_options
def command(request_id: str, url: str | None, uds: str | None, api_key: str | None) -> int:
    """End the request ID, as `engined ps` shows it, whole. Its client gets an error.

    With API keys it takes one that has the scope admin.
    """
    make_operator_client(url, uds, api_key).cancel_request(request_id)
    click.echo(f"ended {request_id}")
    return 0
