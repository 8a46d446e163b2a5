"""Makes the flags of `serve` and `check-config` from the option table, and a configuration from what they gave."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from engined.config.load import CONFIG_FILE_VARIABLE, load_config
from engined.config.options import Option, all_options, suggest, table_titles

_EPILOG = (
    "Each option is also a key of the TOML file, under the table named in brackets, and a variable: --max-num-seqs is "
    "max_num_seqs and ENGINED_MAX_NUM_SEQS. A flag wins over the environment, the environment over the file."
)


class ConfigCommand(click.Command):
    """A command with one flag for each option, listed by table. A mistyped flag is answered with the nearest one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = [name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)]
            name = _as_typed(error.option_name, typed)
            raise click.UsageError(f"No such option: {name}." + suggest("--" + name.lstrip("-"), flags), ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        tables = {option.name: option.table for option in all_options()}
        for table, title in table_titles().items():
            with formatter.section(f"{title} [{table}]"):
                formatter.write_dl(
                    [
                        record
                        for parameter in self.get_params(ctx)
                        if tables.get(parameter.name or "") == table
                        and (record := parameter.get_help_record(ctx)) is not None
                    ]
                )
        with formatter.section("Other"):
            others = [other for other in self.get_params(ctx) if other.name not in tables]
            records = [other.get_help_record(ctx) for other in others if isinstance(other, click.Option)]
            formatter.write_dl([record for record in records if record is not None])


def config_command(
    name: str, run: Callable[..., int], help: str, more_parameters: Sequence[click.Parameter] = ()
) -> ConfigCommand:
    """A command that loads the configuration and hands it to `run`, whose result is the exit code.

    `run` gets the values of `more_parameters` as keyword arguments.
    """

    def callback(model_argument: str | None, config_file: Path | None, **given: Any) -> int:
        more = {parameter.name: given.pop(parameter.name) for parameter in more_parameters if parameter.name}
        flags = {key: value for key, value in given.items() if value not in (None, ())}
        if model_argument is not None and flags.get("model", model_argument) != model_argument:
            raise click.UsageError(f"MODEL is {model_argument}, but --model is {flags['model']}: give one of them")
        if model_argument is not None:
            flags["model"] = model_argument
        return run(load_config(flags, os.environ, config_file), **more)

    parameters: list[click.Parameter] = [
        click.Argument(["model_argument"], metavar="[MODEL]", required=False),
        *more_parameters,
        *(_parameter(option) for option in all_options()),
        click.Option(
            ["--config", "config_file"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help=f"TOML file with options; also {CONFIG_FILE_VARIABLE}.",
        ),
    ]
    return ConfigCommand(name, callback=callback, params=parameters, help=help, epilog=_EPILOG)


def _parameter(option: Option) -> click.Option:
    help = option.help if option.default in (None, (), {}) else f"{option.help} [default: {_shown_default(option)}]"
    if option.type == "switch":
        negative = option.flag.replace("--", "--no-", 1)
        return click.Option([f"{option.flag}/{negative}", option.name], default=None, help=help)
    # Everything arrives as text: the option table parses it, with the same messages as for environment and file.
    return click.Option(
        [*option.flags, option.name],
        type=str,
        metavar=option.metavar or _metavar(option),
        multiple=option.type == "list",
        help=help,
    )


def _shown_default(option: Option) -> str:
    if option.type == "switch":
        return "on" if option.default else "off"
    return f"{option.default:g}" if isinstance(option.default, float) else str(option.default)


def _metavar(option: Option) -> str:
    if option.choices:
        return f"[{'|'.join(option.choices)}]"
    metavars = {"integer": "N", "number": "N", "bytes": "SIZE", "tokens": "TOKENS", "json": "JSON"}
    return metavars.get(option.type, "TEXT")


def _as_typed(name: str, arguments: list[str]) -> str:
    """The argument that click could not read: it takes `-tp` for the short option `-t`, and says only that."""
    if name.startswith("--"):
        return name
    return next((argument for argument in arguments if argument.startswith(name)), name).partition("=")[0]
