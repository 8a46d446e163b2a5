"""Entry of the program `engined`: the commands, each imported when it is called, and the exit codes."""

import sys
from typing import Any

import click

from engined import __version__
from engined.cli.lazy_group import LazyGroup
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
    "bench": ("engined.cli.bench", "Measure servers, and the parts of this one."),
    "doctor": ("engined.cli.doctor", "Look at this machine, and say what to mend."),
    "systemd": ("engined.cli.systemd", "Run it as a service: write the units, or show them."),
}
"""Module (with an attribute `command`) and summary of each command."""


@click.group(cls=LazyGroup, modules=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
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
