"""Keys of a whole daemon: replaced at SIGHUP to the supervisor, and asked for before it listens to other machines."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.end_to_end.server import Server, running

RELOAD_SECONDS = 1.0


def status_with(server: Server, key: str) -> int:
    server.headers["Authorization"] = f"Bearer {key}"
    return server.get("/v1/models")[0]


def test_sighup_replaces_keys_and_loses_no_request(default_gguf: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("alice first-key scopes=inference,metrics\n")
    with running(default_gguf, tmp_path, "--api-keys-file", str(keys)) as server:
        body = {"prompt": "The sea", "max_tokens": 60, "ignore_eos": True, "stream": True}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer first-key"}
        request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as stream:
            stream.readline()
            keys.write_text("bob second-key\n")
            begin = time.monotonic()
            server.process.send_signal(signal.SIGHUP)
            while status_with(server, "second-key") != 200:
                assert time.monotonic() - begin < RELOAD_SECONDS, server.log()
            assert status_with(server, "first-key") == 401
            keys.write_text("bob\n")
            server.process.send_signal(signal.SIGHUP)
            assert stream.read().endswith(b"data: [DONE]\n\n")
        deadline = time.monotonic() + RELOAD_SECONDS
        while f"{keys}, line 1" not in server.log():
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.01)
        assert status_with(server, "second-key") == 200
        assert "first-key" not in server.log() and "second-key" not in server.log()


def test_other_machines_need_a_key(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engined.cli.main", "serve", "--host", "0.0.0.0", "--port", "0"]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "--insecure-no-auth" in result.stderr.splitlines()[-1]
