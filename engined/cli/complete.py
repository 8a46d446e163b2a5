"""`engined complete`."""

import click

from engined.cli.client_options import client_options, generation_fields, make_client


@click.command("complete")
@click.argument("prompt")
@client_options
def command(
    prompt: str,
    url: str | None,
    uds: str | None,
    api_key: str | None,
    model: str | None,
    temperature: float | None,
    max_tokens: int | None,
) -> int:
    """Continue PROMPT, and print the text as it comes."""
    client = make_client(url, uds, api_key, model)
    for chunk in client.complete(prompt, stream=True, **generation_fields(temperature, max_tokens)):
        for choice in chunk.get("choices", ()):
            click.echo(choice.get("text", ""), nl=False)
    click.echo()
    return 0
