"""The shipped units, and those that `engined systemd install` writes: systemd itself says whether they are good."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from engined.cli.main import main
from engined.cli.systemd_units import SHIPPED_PROGRAM, InstalledFile, check_visible, system_files, user_files
from engined.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "systemd"
PROGRAM = str(Path(sys.executable).with_name("engined"))
MAX_EXPOSURE = 2.0

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")


def _analyze(folder: Path, *arguments: str) -> str:
    runtime = folder / "runtime"
    runtime.mkdir(exist_ok=True)
    result = subprocess.run(
        ["systemd-analyze", *arguments],
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def _write(files: list[InstalledFile], folder: Path) -> list[Path]:
    paths = []
    for file in files:
        path = folder / file.path.relative_to("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
        if file.is_unit:
            paths.append(path)
    return paths


@needs_systemd
def test_system_units_are_clean(tmp_path: Path) -> None:
    units = _write(system_files(PROGRAM, "smollm2-135m-instruct"), tmp_path)
    assert len(units) == 5
    assert _analyze(tmp_path, "verify", "--man=no", *map(str, units)) == ""


@needs_systemd
def test_user_units_are_clean(tmp_path: Path) -> None:
    units = _write(user_files(PROGRAM, "smollm2-135m-instruct", {"HOME": "/home/someone"}), tmp_path)
    assert [unit.name for unit in units] == ["engined.service", "engined-http.socket", "engined-uds.socket"]
    assert _analyze(tmp_path, "--user", "verify", "--man=no", *map(str, units)) == ""


@needs_systemd
@pytest.mark.parametrize("name", ["engined.service", "engined@.service"])
def test_system_services_are_locked_down(tmp_path: Path, name: str) -> None:
    text = _analyze(tmp_path, "security", "--offline=true", str(SHIPPED / name))
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", text)
    assert score is not None and float(score[1]) <= MAX_EXPOSURE, text


def test_all_shipped_units_are_installed_and_start_the_program_that_was_named() -> None:
    installed = [*system_files("/usr/bin/other", "m"), *user_files("/usr/bin/other", "m", {"HOME": "/home/someone"})]
    assert len(installed) == sum(path.is_file() for path in SHIPPED.rglob("*")) + 2, "and two configurations"
    assert all(SHIPPED_PROGRAM not in file.text for file in installed)
    assert sum("ExecStart=/usr/bin/other serve" in file.text for file in installed) == 3


def test_the_template_differs_from_the_service_in_its_names_only() -> None:
    def settings(name: str) -> set[str]:
        lines = (SHIPPED / name).read_text().replace("/engined.toml", "/%i.toml").splitlines()
        return {line for line in lines if "=" in line and not line.startswith("#")}

    differing = settings("engined.service") ^ settings("engined@.service")
    names = {line.split("=")[0] for line in differing}
    directories = {"RuntimeDirectory", "RuntimeDirectoryPreserve", "StateDirectory", "Environment"}
    assert names == {"Description", "After", *directories}


def test_install_writes_verifies_and_tells_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert main(["systemd", "install", "--user", "--model", "all-minilm-l6-v2"]) == 0
    output = capsys.readouterr().out
    assert "verified by systemd-analyze" in output or "there is no systemd-analyze here" in output
    assert "systemctl --user enable --now engined.service" in output
    config = tmp_path / "home/.config/engined/engined.toml"
    assert tomllib.loads(config.read_text()) == {"model": {"model": "all-minilm-l6-v2"}}
    unit = tmp_path / "home/.config/systemd/user/engined.service"
    assert f"ExecStart={PROGRAM} serve --config %E/engined/engined.toml\n" in unit.read_text()

    config.write_text("# mine\n")
    unit.write_text("# old\n")
    assert main(["systemd", "install", "--user"]) == 0
    assert f"kept     {config}" in capsys.readouterr().out
    assert config.read_text() == "# mine\n" and "ExecStart" in unit.read_text()


def test_a_model_in_a_folder_becomes_absolute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.gguf").touch()
    assert main(["systemd", "install", "--system", "--model", "a.gguf", "--prefix", "root"]) == 0
    config = tomllib.loads((tmp_path / "root/etc/engined/engined.toml").read_text())
    assert config["model"] == {"model": str(tmp_path / "a.gguf")}
    assert config["server"] == {"uds": "/run/engined/engined.sock", "uds_group": "engined"}
    assert " pull " not in capsys.readouterr().out


@needs_systemd
def test_faults_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engined.cli.systemd.this_program", lambda: "/nowhere/engined")
    assert main(["systemd", "install", "--user", "--prefix", str(tmp_path)]) == 1
    assert "/nowhere/engined is not executable" in capsys.readouterr().err


def test_show_prints_what_install_would_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["systemd", "show", "--system"]) == 0
    output = capsys.readouterr().out
    assert "#### /etc/systemd/system/engined.service\n" in output and f"ExecStart={PROGRAM} serve" in output


def test_one_kind_must_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["systemd", "install"]) == 2
    assert "give --user or --system" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/home/someone/venv", "/tmp/venv", "/root/models/a.gguf"])
def test_what_the_system_service_cannot_see_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="hidden from the system's services"):
        check_visible([Path("/opt/engined"), Path(path)])
    check_visible([Path("/opt/engined"), Path("/srv/models/a.gguf")])


@pytest.mark.parametrize("unit", ["engined.service", "engined@.service"])
def test_keys_are_read_where_a_reload_finds_their_change(unit: str) -> None:
    text = (SHIPPED / unit).read_text()
    [file] = re.findall(r"^ExecStart=.* --api-keys-file (\S+)$", text, re.MULTILINE)
    assert not file.startswith("%d") and "LoadCredential" not in text
    rules = [line.split() for line in (SHIPPED / "engined.tmpfiles.conf").read_text().splitlines()]
    # The user that the service runs as can read it, and nobody else.
    assert [rule[:1] + rule[2:5] for rule in rules if rule[1:2] == [file]] == [
        ["f", "0600", "engined", "engined"],
        ["z", "0600", "engined", "engined"],
    ]
