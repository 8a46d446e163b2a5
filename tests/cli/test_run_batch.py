"""`engined run-batch` and what it refuses before it starts anything. What it does is in tests/end_to_end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LINE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}})


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "engined.cli.main", "run-batch", *arguments],
        env=os.environ | {"XDG_RUNTIME_DIR": str(folder), "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-o", "out"], 2, "Missing option '-i' / '--input'"),
        (["-i", "nowhere", "-o", "out"], 2, "File 'nowhere' does not exist"),
        (["-i", "good", "-o", "out", "--port", "80"], 2, "--port: run-batch starts a server for itself alone"),
        (
            ["-i", "good", "-o", "out", "--url", "unix:", "--max-num-seqs", "3"],
            2,
            "--max-num-seqs: the server at --url",
        ),
        (["-i", "good", "-o", "out", "--url", "unix:", "a-model"], 2, "--model: the server at --url"),
        (["-i", "good", "-o", "out", "--url", "nowhere"], 1, "'nowhere' is not a URL"),
        (["-i", "twice", "-o", "out"], 65, "line 3 of twice: custom_id 'a' stands in line 1 already"),
        (["-i", "good", "-o", "good"], 65, "good is both input and output"),
        (["-i", "good", "-o", "notes"], 65, "line 1 of notes is no result of a batch"),
        (["-i", "good", "-o", "/dev/null"], 65, "not a regular file"),
        (["-i", "good", "-o", "no/out"], 74, "No such file or directory: 'no/out'"),
        (["-i", "good", "-o", "out", "no-model"], 66, "no-model"),
    ],
    ids=lambda value: " ".join(value[4:]) if isinstance(value, list) else "",
)
def test_mistakes_end_it_before_it_starts(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    files = {"good": LINE + "\n", "twice": f"{LINE}\n\n{LINE}\n", "notes": "mine\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    result = run(tmp_path, *arguments)
    assert (result.returncode, message in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.stderr
    assert {name: (tmp_path / name).read_text() for name in files} == files


def test_a_file_without_lines_is_done(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n")
    (tmp_path / "out").write_text("")
    result = run(tmp_path, "-i", "in", "-o", "out", "--url", "unix:/nowhere")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("0 lines: 0 completed, 0 failed")
