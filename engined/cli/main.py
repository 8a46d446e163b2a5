"""Entry of the program `engined`: the commands, each imported when it is called, and the exit codes."""

import importlib
import sys
from typing import Any

import click

from engined import __version__
from engined.config.options import suggest
from engined.errors import EnginedError

_COMMANDS = {
    "serve": ("engined.cli.serve", "Serve a model over HTTP and a Unix socket."),
    "pull": ("engined.cli.pull", "Download a model, and print its path."),
    "check-config": ("engined.cli.check_config", "Print every effective option and the memory plan."),
    "run-batch": ("engined.cli.run_batch", "Answer a file of requests."),
    "keys": ("engined.cli.keys", "Make API keys."),
    "status": ("engined.cli.status", "Show how the server is doing."),
    "ps": ("engined.cli.ps", "List the requests that are under way."),
    "kill": ("engined.cli.kill", "End a request that is under way."),
    "chat": ("engined.cli.chat", "Chat with the server in the terminal."),
    "complete": ("engined.cli.complete", "Continue a text."),
    "systemd": ("engined.cli.systemd", "Run it as a service: write the units, or show them."),
}
"""Module (with an attribute `command`) and summary of each command."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary only, so that `engined --help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, summary = _COMMANDS[cmd_name]
        command: click.Command = importlib.import_module(module).command
        command.short_help = summary
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if len(args) > 1 and args[0] in _COMMANDS and args[1] == args[0]:
            raise click.UsageError(
                f"{args[0]!r} is there twice: the entry point of a container may already contain it; leave it out", ctx
            )
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"No such command: {args[0]}." + suggest(args[0], _COMMANDS), ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="engined")
def engined() -> None:
    """An LLM inference server: one daemon, an OpenAI-compatible service."""


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns the exit code. A failure is one clear line on stderr."""
    try:
        result: Any = engined.main(arguments, prog_name="engined", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except EnginedError as error:
        click.echo(f"engined: error: {error}", err=True)
        return error.exit_code
    except OSError as error:
        click.echo(f"engined: error: {error}", err=True)
        return 74
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
