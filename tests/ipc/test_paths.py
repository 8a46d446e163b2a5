"""The runtime folder: privacy, locks, and the sweep of what dead daemons left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engined.errors import ListenError
from engined.ipc.paths import RuntimeDirectory, default_uds_path, private_directory


def test_default_path_is_in_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = default_uds_path()
    assert path == tmp_path / "engined" / "engined.sock"
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_without_a_runtime_folder_it_is_below_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert default_uds_path() == Path(f"/tmp/engined-{os.getuid()}/engined.sock")


def test_open_or_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("open", "link", "file"):
        with pytest.raises(ListenError, match="XDG_RUNTIME_DIR"):
            private_directory(tmp_path / name)


def test_folder_lives_as_long_as_its_daemon(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with RuntimeDirectory(base) as directory:
        assert directory.path.stat().st_mode & 0o777 == 0o700
        assert directory.socket_path("engine-0") == directory.path / "engine-0.sock"
        with RuntimeDirectory(base) as other:
            assert other.path != directory.path
        assert directory.path.exists()
    assert not directory.path.exists()


def test_folder_of_a_killed_daemon_is_swept(tmp_path: Path) -> None:
    base = tmp_path / "base"
    code = (
        "import os, pathlib, sys; from engined.ipc.paths import RuntimeDirectory;"
        "print(RuntimeDirectory(pathlib.Path(sys.argv[1])).path); sys.stdout.flush(); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(base)], stdout=subprocess.PIPE, text=True, check=False)
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    with RuntimeDirectory(base):
        assert not left.exists()


def test_long_base_is_refused(tmp_path: Path) -> None:
    base = tmp_path / ("x" * 100)
    with RuntimeDirectory(base) as directory, pytest.raises(ListenError, match="shorten it"):
        directory.socket_path("engine-0")
