"""`engined run-batch`: a file of requests in, a file of results out."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path

import click
from tqdm import tqdm

from engined import log
from engined.batch.journal import Journal
from engined.batch.request_line import BATCH_URLS, read_lines
from engined.batch.runner import count_unfinished
from engined.batch.survey import survey
from engined.cli.batch_answers import BatchWork, answer_lines
from engined.cli.config_command import config_command
from engined.cli.private_daemon import PrivateDaemon
from engined.client import AsyncClient
from engined.config.load import LoadedConfig
from engined.config.schema import Config
from engined.errors import BatchError, ConfigError

MAX_LINES_AT_ONCE = 256
MAX_LINES_AT_A_SHARED_SERVER = 32
"""It may have other clients, for whom its lines are like those of anybody."""
UNIX_PREFIX = "unix:"
PRIVATE_OPTIONS = (
    "host",
    "port",
    "uds",
    "data_dir",
    "api_key",
    "api_keys_file",
    "insecure_no_auth",
    "allowed_host",
    "allowed_origin",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
)
"""Options about clients, which a private daemon does not have."""
SHARED_OPTIONS = ("api_key", "log_level", "log_format")

"""Options that still mean something when a running server answers."""


def _run_batch(loaded: LoadedConfig, input_path: Path, output_path: Path, url: str | None) -> int:
    _check_options(loaded, url)
    config = loaded.config
    if url is None and loaded.is_default("log_level"):
        config = dataclasses.replace(config, server=dataclasses.replace(config.server, log_level="warning"))
    log.setup("run-batch", config.server.log_level, config.server.log_format)
    started = time.monotonic()
    num_lines = _count_lines(input_path, output_path)
    with Journal(output_path) as journal:
        num_before = num_lines - count_unfinished(journal, read_lines(input_path), BATCH_URLS)
        with tqdm(total=num_lines, initial=num_before, unit="line", disable=None, dynamic_ncols=True) as bar:
            work = BatchWork(input_path=input_path, journal=journal, on_result=lambda: _show(bar, journal))
            code = 0
            if num_before < num_lines:
                code = _answer_in_private(work, config) if url is None else _answer_at(url, work, config)
        if code != 0:
            click.echo(f"stopped after {journal.num_finished} of {num_lines} lines; run it again to go on", err=True)
            return code
        click.echo(
            f"{num_lines} lines: {journal.num_completed} completed, {journal.num_failed} failed, "
            f"{num_before} of them in earlier runs; {time.monotonic() - started:.1f} s; results in {output_path}"
        )
    return 0


def _answer_in_private(work: BatchWork, config: Config) -> int:
    max_lines = min(config.scheduler.max_num_seqs, MAX_LINES_AT_ONCE)
    with PrivateDaemon(config) as daemon:
        return asyncio.run(_until_signal(work, AsyncClient(uds=daemon.socket_path), max_lines, daemon))


def _answer_at(url: str, work: BatchWork, config: Config) -> int:
    api_key = next(iter(config.server.api_key), None)
    if url.startswith(UNIX_PREFIX):
        client = AsyncClient(uds=url.removeprefix(UNIX_PREFIX) or None, api_key=api_key)
    else:
        client = AsyncClient(url, api_key=api_key)
    return asyncio.run(_until_signal(work, client, MAX_LINES_AT_A_SHARED_SERVER, None))


async def _until_signal(work: BatchWork, client: AsyncClient, max_lines: int, daemon: PrivateDaemon | None) -> int:
    """Answer all lines, or those that are done when a signal comes. Returns the exit code; raises what failed."""
    task = asyncio.create_task(answer_lines(work, client, max_lines, daemon))
    signals: list[int] = []

    def stop(number: int) -> None:
        signals.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return 128 + signals[0] if task.cancelled() else 0


def _check_options(loaded: LoadedConfig, url: str | None) -> None:
    """Raises ConfigError for a flag that would change nothing."""
    flags = [name for name, source in loaded.sources.items() if source.startswith("flag")]
    for name in flags:
        flag = "--" + name.replace("_", "-")
        if url is None and name in PRIVATE_OPTIONS:
            raise ConfigError(f"{flag}: run-batch starts a server for itself alone; leave it out, or give --url")
        if url is not None and name not in SHARED_OPTIONS:
            raise ConfigError(f"{flag}: the server at --url has its own options; leave it out, or leave out --url")


def _count_lines(input_path: Path, output_path: Path) -> int:
    """Look through the input before anything is started. Raises BatchError, or OSError if it cannot be read."""
    if output_path.exists() and os.path.samefile(input_path, output_path):
        raise BatchError(f"{input_path} is both input and output: choose another -o")
    found = survey(input_path, BATCH_URLS)
    if found.duplicate is not None:
        number, fault = found.duplicate
        raise BatchError(f"line {number} of {input_path}: {fault}")
    return found.num_lines


def _show(bar: "tqdm[None]", journal: Journal) -> None:
    bar.set_postfix(failed=journal.num_failed, refresh=False)
    bar.update()


command = config_command(
    "run-batch",
    _run_batch,
    "Answer a file of requests in OpenAI's batch format, with MODEL and the options of `engined serve`. Results are "
    "written as they come; run again with the same files, it goes on where it was stopped or killed. The exit code is "
    "0 if every line has its result, be it an error.",
    more_parameters=(
        click.Option(
            ["-i", "--input", "input_path"],
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            required=True,
            metavar="FILE",
            help="Requests, one a line.",
        ),
        click.Option(
            ["-o", "--output", "output_path"],
            type=click.Path(path_type=Path, dir_okay=False),
            required=True,
            metavar="FILE",
            help="Results, one a line, in the order in which they are done. What is there is kept.",
        ),
        click.Option(
            ["--url"],
            metavar="URL",
            help="Ask a running server instead: http://HOST:PORT, or unix:PATH (without PATH: this user's daemon).",
        ),
    ),
)
