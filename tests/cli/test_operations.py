"""`engined ps`, `kill` and `status` against a running daemon, and against none."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engined.cli.text import format_seconds, format_table
from engined.client import Client, ClientError
from tests.end_to_end.server import Server

PROMPT = "A tale that is told for a long time:"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "engined.cli.main", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


class LongRequest(threading.Thread):
    """A stream that goes on until it is ended."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._client = Client(uds=server.uds)
        self.text = ""
        self.error: ClientError | None = None
        self.has_begun = threading.Event()

    def run(self) -> None:
        try:
            fields: dict[str, Any] = {"max_tokens": 7000, "ignore_eos": True}
            for chunk in self._client.complete(PROMPT, stream=True, **fields):
                self.text += chunk["choices"][0]["text"]
                self.has_begun.set()
        except ClientError as error:
            self.error = error


def test_list_and_end_a_live_request(default_server: Server) -> None:
    uds = ("--uds", str(default_server.uds))
    request = LongRequest(default_server)
    request.start()
    assert request.has_begun.wait(30)

    listed = run("ps", *uds)
    assert listed.returncode == 0, listed.stderr
    heading, line = listed.stdout.splitlines()
    assert heading.split() == ["ID", "KEY", "ENDPOINT", "STATE", "POS", "TOKENS", "AGE"]
    request_id, key, endpoint, state, position, tokens, age = line.split()
    assert (key, endpoint, state, position) == ("-", "completions", "running", "-")
    assert int(tokens.split("+")[1]) > 0 and age.endswith("s")
    [row] = json.loads(run("ps", "--json", *uds).stdout)
    assert (row["id"], row["stream"]) == (request_id, True)
    assert PROMPT not in listed.stdout + json.dumps(row)

    status = run("status", *uds)
    assert status.returncode == 0, status.stderr
    assert "1 under way: 1 sequences run, 0 wait" in status.stdout
    assert max(map(len, status.stdout.splitlines())) <= 100, "the longest line is the socket's, in a short folder"

    wrong = run("kill", request_id[:-1], *uds)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "no request that is under way has this id" in wrong.stderr
    begin = time.monotonic()
    killed = run("kill", request_id, *uds)
    assert (killed.returncode, killed.stdout, killed.stderr) == (0, f"ended {request_id}\n", "")
    request.join(5)
    assert request.error is not None and request.error.code == "request_cancelled"
    assert time.monotonic() - begin < 10
    assert run("ps", *uds).stdout == "ID  KEY  ENDPOINT  STATE  POS  TOKENS  AGE\n"
    default_server.wait_for_metric("engined:num_requests_running", 0)
    assert f"{request_id} (" in default_server.log() and PROMPT not in default_server.log()


def test_status_tells_how_the_server_is(default_server: Server) -> None:
    default_server.complete(prompt="Hello", max_tokens=8, ignore_eos=True)
    status = json.loads(run("status", "--json", "--url", default_server.url).stdout)
    assert (status["status"], status["phase"], status["restarts"]) == ("ready", "serving", 0)
    assert 0 < status["uptime_s"] < time.monotonic()
    assert status["engine"]["pid"] in default_server.processes()
    assert status["load"]["generated_tokens_per_s"] > 0
    assert status["load"]["requests_per_s"] > 0


@pytest.mark.parametrize("arguments", [("ps",), ("status",), ("kill", "x")])
def test_without_a_server_the_exit_code_is_69(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = run(*arguments, "--uds", f"{tmp_path}/none.sock")
    assert (result.returncode, result.stdout) == (69, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("engined: error: no engined server answers at unix:")


def test_a_table_fits_the_terminal() -> None:
    rows = [
        ("ID", "KEY", "ENDPOINT", "STATE", "POS", "TOKENS", "AGE"),
        (
            "chatcmpl-" + "0" * 32,
            "a-name-of-sixty-four-letters" * 2,
            "chat/completions",
            "preempted",
            "12",
            "100+7",
            "3m",
        ),
    ]
    lines = format_table(rows, flexible=1, min_width=4, max_width=100, right=(4, 5, 6)).splitlines()
    assert max(map(len, lines)) == 100
    assert "a-na" in lines[1] and "…" in lines[1]
    assert lines[0].endswith("POS  TOKENS  AGE") and lines[1].endswith(" 12   100+7   3m")


def test_durations() -> None:
    seconds = (0.04, 9.94, 12.9, 185.0, 7800.0, 442800.0)
    assert [*map(format_seconds, seconds)] == ["0.0s", "9.9s", "12s", "3m05s", "2h10m", "5d03h"]
