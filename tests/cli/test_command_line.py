"""The command line as a user meets it: the closed set of flags, help, mistakes, exit codes, check-config."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from engined.cli.lazy_group import LazyGroup
from engined.cli.main import engined, main
from engined.config.options import all_options

SERVE_FLAGS = [
    "--allowed-host",
    "--allowed-origin",
    "--api-key",
    "--api-keys-file",
    "--bind-threads",
    "--block-size",
    "--chat-template",
    "--config",
    "--data-dir",
    "--data-parallel-size",
    "--dp",
    "--dtype",
    "--enable-prefix-caching",
    "--host",
    "--insecure-no-auth",
    "--kv-cache-dtype",
    "--kv-cache-memory",
    "--log-format",
    "--log-level",
    "--long-prefill-token-threshold",
    "--max-body-size",
    "--max-connections",
    "--max-connections-per-ip",
    "--max-logprobs",
    "--max-model-len",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--max-queued-requests",
    "--max-queued-tokens",
    "--max-step-ms",
    "--metrics-vllm-names",
    "--model",
    "--no-bind-threads",
    "--no-enable-prefix-caching",
    "--no-insecure-no-auth",
    "--no-metrics-vllm-names",
    "--num-threads",
    "--override-generation-config",
    "--pipeline-parallel-size",
    "--port",
    "--pp",
    "--quantization",
    "--reasoning-parser",
    "--responses-store-memory",
    "--responses-store-size",
    "--revision",
    "--runner",
    "--scheduling-policy",
    "--seed",
    "--served-model-name",
    "--shutdown-timeout",
    "--startup-timeout",
    "--step-timeout",
    "--stream-interval",
    "--tensor-parallel-size",
    "--tls-certificate",
    "--tls-client-ca",
    "--tls-key",
    "--tool-call-parser",
    "--tp",
    "--trace",
    "--uds",
    "--uds-group",
    "--unknown-fields",
]
"""Adding a flag means adding it here, and asking first whether a key of the TOML file would not do."""

CONNECTION_FLAGS = ["--api-key", "--uds", "--url"]
CLIENT_FLAGS = ["--api-key", "--max-tokens", "--model", "--temperature", "--uds", "--url"]

RUN_BATCH_FLAGS = sorted([*SERVE_FLAGS, "--input", "--output", "--url", "-i", "-o"])

COMMANDS = {
    "serve": SERVE_FLAGS,
    "check-config": SERVE_FLAGS,
    "pull": ["--revision"],
    "run-batch": RUN_BATCH_FLAGS,
    "status": sorted([*CONNECTION_FLAGS, "--json"]),
    "ps": sorted([*CONNECTION_FLAGS, "--json"]),
    "kill": CONNECTION_FLAGS,
    "chat": CLIENT_FLAGS,
    "complete": CLIENT_FLAGS,
    "bench serve": [
        "--api-key",
        "--baseline",
        "--concurrency",
        "--input",
        "--json",
        "--name",
        "--num-requests",
        "--output",
        "--plot",
        "--plot-latency",
        "--prefix",
        "--rate",
        "--rounds",
        "--seed",
        "--server",
        "--started-by",
        "--timeout",
        "--vocab-size",
        "--workload",
        "-c",
        "-n",
    ],
    "bench step": ["--json", "--requests", "--scenario", "--steps"],
    "bench stream": ["--clients", "--json", "--model", "--output", "--rounds", "--route", "--step-ms", "-c"],
    "bench startup": ["--json", "--starts", "--timeout", "-n"],
    "doctor": ["--json"],
    "systemd show": ["--model", "--system", "--user"],
    "systemd install": ["--model", "--prefix", "--system", "--user"],
    "keys new": ["--file", "--scope"],
}


def _command(name: str) -> click.Command:
    assert isinstance(engined, LazyGroup)
    group, _, subcommand = name.partition(" ")
    command = engined.get_command(click.Context(engined), group)
    if subcommand:
        assert isinstance(command, click.Group) and command.help
        command = command.get_command(click.Context(command), subcommand)
    assert command is not None
    return command


def _run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "engined.cli.main", *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_commands_are_a_closed_set() -> None:
    assert engined.list_commands(click.Context(engined)) == [  # type: ignore[attr-defined]
        "serve",
        "pull",
        "check-config",
        "run-batch",
        "keys",
        "status",
        "ps",
        "kill",
        "chat",
        "complete",
        "bench",
        "doctor",
        "systemd",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_are_a_closed_set(name: str) -> None:
    flags = [
        flag
        for parameter in _command(name).params
        if isinstance(parameter, click.Option)
        for flag in (*parameter.opts, *parameter.secondary_opts)
    ]
    assert sorted(flags) == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    command = _command(name)
    assert command.help
    assert command.short_help or " " in name
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts


def test_help_groups_the_flags_by_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    for option in all_options():
        section = text.index(f"[{option.table}]:")
        assert section < text.index(f"  {option.flag}"), option.name


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, time; begin = time.process_time(); from engined.cli.main import main; main(['--help']);"
        "heavy = {'torch', 'transformers', 'aiohttp', 'numpy', 'engined.supervisor', 'engined.client'};"
        "print(heavy & set(sys.modules), file=sys.stderr); print(time.process_time() - begin, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, seconds = result.stderr.splitlines()
    assert heavy == "set()"
    # CPU time, and with room for a busy machine; the promise is 0.3 s.
    assert float(seconds) < 0.3


def test_supervisor_and_its_commands_import_nothing_heavy() -> None:
    code = (
        "import sys; import engined.cli.serve, engined.cli.check_config, engined.cli.pull;"
        "print({'torch', 'transformers', 'aiohttp', 'tokenizers', 'huggingface_hub'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"engined, version \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serv"], "No such command: serv. Did you mean serve?"),
        (["serve", "serve", "m"], "'serve' is there twice"),
        (["serve", "--max-num-seq", "3"], "No such option: --max-num-seq. Did you mean --max-num-seqs?"),
        (["serve", "--max-num", "3"], "No such option: --max-num."),
        (["serve", "-tp", "2"], "No such option: -tp. Did you mean --tp?"),
        (["serve", "-max-num-seqs=2"], "No such option: -max-num-seqs. Did you mean --max-num-seqs?"),
        (["serve", "a", "b"], "Got unexpected extra argument (b)"),
        (["serve", "a", "--model", "b"], "MODEL is a, but --model is b"),
        (["serve", "--port", "x"], "--port (flag --port): 'x' is not a whole number"),
        (["serve", "--dtype=int3"], "'int3' is not one of auto, bfloat16, float32"),
        (["serve", "--tp", "0"], "--tensor-parallel-size (flag --tensor-parallel-size): 0 is too small"),
        (["serve", "--pp", "2"], "--pipeline-parallel-size 2: only 1 is implemented"),
        (["chat", "--url", "nowhere"], "'nowhere' is not a URL"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = _run(*arguments)
    assert result.returncode == (1 if arguments[0] == "chat" else 2)
    assert message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_both_forms_of_a_flag_are_the_same(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[server]\nport = 1234\n")
    joined = _run("check-config", f"--config={config}", "nothing", "--max-num-seqs=7")
    apart = _run("check-config", "--max-num-seqs", "7", "nothing", "--config", str(config))
    assert joined.stdout == apart.stdout
    assert re.search(rf"server\.port +1234 +file {config}, line 2", joined.stdout)
    assert re.search(r"scheduler\.max_num_seqs +7 +flag --max-num-seqs", joined.stdout)


def test_unknown_key_exits_with_two(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[server]\nprt = 1234\n")
    result = _run("serve", f"--config={config}")
    assert result.returncode == 2
    assert f"{config}, line 2: unknown key prt in [server]. Did you mean port?" in result.stderr


def test_check_config_shows_every_option_and_hides_keys() -> None:
    result = _run("check-config", "nothing", "--no-enable-prefix-caching", ENGINED_API_KEY="secret,other")
    assert result.returncode == 66
    for option in all_options():
        assert re.search(rf"^{option.table}\.{option.name} ", result.stdout, re.MULTILINE)
    assert re.search(r"server\.api_key +2 key\(s\) +environment ENGINED_API_KEY", result.stdout)
    assert re.search(r"cache\.enable_prefix_caching +false +flag --enable-prefix-caching", result.stdout)
    assert "secret" not in result.stdout + result.stderr
    assert "unknown model 'nothing'" in result.stderr


def test_serve_fails_fast_and_says_why_last(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    begin = time.monotonic()
    result = _run("serve", str(tmp_path), "--port", "0", XDG_RUNTIME_DIR=str(tmp_path))
    assert result.returncode == 65
    assert "config.json" in result.stderr.splitlines()[-1]
    assert time.monotonic() - begin < 5
