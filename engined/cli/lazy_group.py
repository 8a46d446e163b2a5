"""A group of commands that are imported when they are called, so that `--help` is quick and loads nothing heavy."""

import importlib
from collections.abc import Mapping
from typing import Any

import click

from engined.config.options import suggest


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary only."""

    def __init__(self, *arguments: Any, modules: Mapping[str, tuple[str, str]], **more: Any) -> None:
        """`modules`: the module (with an attribute `command`) and the summary of each command."""
        super().__init__(*arguments, **more)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module, summary = self._modules[cmd_name]
        command: click.Command = importlib.import_module(module).command
        command.short_help = summary
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._modules.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if len(args) > 1 and args[0] in self._modules and args[1] == args[0]:
            raise click.UsageError(
                f"{args[0]!r} is there twice: the entry point of a container may already contain it; leave it out", ctx
            )
        if args[0] not in self._modules and not args[0].startswith("-"):
            raise click.UsageError(f"No such command: {args[0]}." + suggest(args[0], self._modules), ctx)
        return super().resolve_command(ctx, args)
