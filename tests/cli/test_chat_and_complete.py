"""`engined chat` in a pipe and in a real terminal (a pty), and `engined complete`."""

import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.echo_server import Handler, serve

ENGINED = [sys.executable, "-m", "engined.cli.main"]


@pytest.fixture
def echo_socket(tmp_path: Path) -> Iterator[str]:
    """Path of a running echo server's socket."""
    path = str(tmp_path / "s.sock")
    with serve(path):
        yield path


def _pipe(socket: str, text: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*ENGINED, "chat", "--uds", socket, *flags], input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_piped_lines_are_turns_with_a_history(echo_socket: str) -> None:
    result = _pipe(echo_socket, "one\n\n/system be brief\ntwo\n/clear\nthree\n", "--temperature", "0", "--max-tokens=9")
    assert (result.returncode, result.stdout, result.stderr) == (0, "eno\nowt\neerht\n", "")
    first, second, third = Handler.requests
    assert first["messages"] == [{"role": "user", "content": "one"}]
    assert [first[key] for key in ("model", "stream", "temperature", "max_tokens")] == ["echo", True, 0, 9]
    assert second["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "eno"},
        {"role": "user", "content": "two"},
    ]
    assert third["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "three"}]


def test_piped_exit_and_failure(echo_socket: str) -> None:
    assert _pipe(echo_socket, "one\n/exit\ntwo\n").stdout == "eno\n"
    failed = _pipe(echo_socket, "fail\ntwo\n")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "engined: error: no good\n"


def test_no_server(tmp_path: Path) -> None:
    result = _pipe(f"{tmp_path}/none.sock", "one\n")
    assert result.returncode == 69
    assert "start one with `engined serve`" in result.stderr


def test_complete(echo_socket: str) -> None:
    result = subprocess.run(
        [*ENGINED, "complete", "abc", "--uds", echo_socket, "--model", "m"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "cba\n")
    assert Handler.requests == [{"model": "m", "stream": True, "prompt": "abc"}]


class Terminal:
    """A chat on a pty."""

    def __init__(self, socket: str) -> None:
        self._fd, child_fd = pty.openpty()
        self.process = subprocess.Popen(
            [*ENGINED, "chat", "--uds", socket],
            stdin=child_fd,
            stdout=child_fd,
            stderr=child_fd,
            start_new_session=True,
            # The new session takes the pty as its terminal, so that Ctrl-C becomes SIGINT.
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(child_fd)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` is shown; what comes up to it is forgotten."""
        os.set_blocking(self._fd, False)
        deadline = time.monotonic() + 30
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            try:
                self.shown += os.read(self._fd, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)
        self.shown = self.shown.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.fixture
def terminal(echo_socket: str) -> Iterator[Terminal]:
    terminal = Terminal(echo_socket)
    yield terminal
    terminal.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.type("slow\n")
    terminal.wait_for("wols....")
    terminal.type("\x03")
    terminal.wait_for("[stopped]")
    assert Handler.hung_up.wait(5)
    terminal.wait_for("> ")
    terminal.type("next\n")
    terminal.wait_for("txen")
    kept = Handler.requests[-1]["messages"]
    assert [message["role"] for message in kept] == ["user", "assistant", "user"]
    assert kept[1]["content"].startswith("wols....")
    terminal.wait_for("> ")
    # At the prompt, Ctrl-C throws the line away.
    terminal.type("half a li\x03")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(10) == 0


def test_terminal_shows_errors_and_goes_on(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.type("fail\n")
    terminal.wait_for("error: no good")
    terminal.wait_for("> ")
    terminal.type("/nonsense\n")
    terminal.wait_for("no command /nonsense")
    terminal.wait_for("> ")
    terminal.type("/exit\n")
    assert terminal.process.wait(10) == 0
    assert len(Handler.requests) == 1
