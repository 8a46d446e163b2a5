"""Building: once for all processes, and a daemon that works without it."""

import fcntl
import logging
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engined.kernels.cpu import library
from engined.kernels.cpu.build import build, find_compiler
from engined.kernels.cpu.library import load_cpu_kernels

RACE = """
import logging, sys
from pathlib import Path
from engined.kernels.cpu.build import build
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
print(build(sys.argv[1], Path(sys.argv[2])))
"""


@pytest.fixture
def compiler() -> str:
    found = find_compiler()
    if found is None:
        pytest.skip("no C++ compiler here")
    return found


def test_two_builders_build_once(compiler: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, compiler, str(tmp_path / "cache")]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [builder.communicate(timeout=300)[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert sum("built the CPU kernels" in output for output in outputs) == 1
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert [path.suffix for path in sorted((tmp_path / "cache").iterdir())] == [".so", ".lock"]


def test_other_flags_are_another_library(compiler: str, tmp_path: Path) -> None:
    fake = tmp_path / "compiler"
    fake.write_text('#!/bin/sh\nfor last; do :; done\ncase "$1" in --version) echo 1;; *) echo > "$last";; esac\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    assert build(str(fake), tmp_path, ["-march=a"]) != build(str(fake), tmp_path, ["-march=b"])
    assert build(str(fake), tmp_path, ["-march=a"]) != build(compiler, tmp_path)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_cpu_kernels(tmp_path / "cache") is None
    assert "install g++" in caplog.text


def test_a_compiler_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake = tmp_path / "compiler"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "no such header" >&2\nexit 1\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(library, "find_compiler", lambda: str(fake))
    with caplog.at_level(logging.WARNING, "engined"):
        assert load_cpu_kernels(tmp_path / "cache") is None
    assert "no such header" in caplog.text
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_build_shows_signs_of_life(tmp_path: Path) -> None:
    """While the compiler runs, and while another process holds the lock: a stuck build is one that is silent."""
    fake = tmp_path / "compiler"
    fake.write_text(
        "#!/bin/sh\nfor last; do :; done\n"
        'case "$*" in --version) echo 1;; *" -c "*) echo > "$last";; *) sleep 1.25; echo > "$last";; esac\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    reports: list[tuple[str, str]] = []
    cache = tmp_path / "cache"
    cache.mkdir()
    with (cache / "cpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(0.7, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        report = lambda phase, detail="": reports.append((phase, detail))  # noqa: E731
        assert build(str(fake), cache, report_progress=report).exists()
    assert {phase for phase, _ in reports} == {"preparing the CPU kernels"}
    details = [detail for _, detail in reports]
    assert details[:2] == ["", "another process compiles them"]
    assert re.fullmatch(r"compiling for \d+ s, once for this machine", details[-1])
    assert sum(detail.startswith("compiling") for detail in details) >= 2
