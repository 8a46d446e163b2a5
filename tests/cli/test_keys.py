"""`engined keys new`: a key that is shown once, and a file that a server accepts."""

import stat
from pathlib import Path

import pytest

from engined.cli.main import main
from engined.config.api_keys import digest_key, load_api_keys, parse_api_keys
from engined.config.schema import ServerConfig


def test_a_key_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "alice", "--scope", "metrics", "--scope", "admin"]) == 0
    key, line = capsys.readouterr().out.splitlines()
    [(_, parsed)] = parse_api_keys(line, "keys")
    assert key.startswith("sk-engined-") and len(key) > 50 and key not in line
    assert (parsed.name, parsed.digest, parsed.scopes) == ("alice", digest_key(key), {"metrics", "admin"})


def test_keys_are_appended_to_a_private_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    assert main(["keys", "new", "alice", "--file", str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(path.read_text().rstrip("\n"))  # as some editors leave it
    assert main(["keys", "new", "bob", "--file", str(path)]) == 0
    alice, bob = capsys.readouterr().out.split()
    keys = load_api_keys(ServerConfig(api_keys_file=str(path))) or ()
    assert [(key.name, key.digest) for key in keys] == [("alice", digest_key(alice)), ("bob", digest_key(bob))]


def test_what_cannot_be_appended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    assert main(["keys", "new", "alice", "--file", str(path)]) == 0
    before = path.read_text()
    assert main(["keys", "new", "alice", "--file", str(path)]) == 2
    assert "the name alice is taken by" in capsys.readouterr().err
    assert main(["keys", "new", "a b"]) == 2
    path.chmod(0o644)
    assert main(["keys", "new", "bob", "--file", str(path)]) == 2
    assert "chmod o-rwx" in capsys.readouterr().err
    assert path.read_text() == before


def test_how_a_server_gets_to_know_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """systemd copies a credential once, when the service starts: a reload would read the old copy again."""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    (tmp_path / "credentials").mkdir()
    assert main(["keys", "new", "alice", "--file", str(tmp_path / "keys")]) == 0
    assert "reads it at SIGHUP (systemctl reload engined)" in capsys.readouterr().err
    assert main(["keys", "new", "bob", "--file", str(tmp_path / "credentials" / "api-keys")]) == 0
    said = capsys.readouterr().err
    assert "restart the service" in said and "reload" not in said
